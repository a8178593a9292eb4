"""Who holds a node id, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.protocol.hardware import Host
from runtime.protocol.heartbeat import Heartbeat
from runtime.protocol.problems import Problem
from runtime.server.services.registration import KnownNode, Verdict, decide

LOST_AFTER = 60.0


def beat(instance: str = "instance-1", run: int = 5, boot: str = "boot-1", machine: str = "machine-1") -> Heartbeat:
    return Heartbeat(1, "gpu-a", instance, run, 1, fingerprint=machine, boot_id=boot)


def node(instance: str | None = "instance-1", **facts: Any) -> KnownNode:
    known: dict[str, Any] = {"fingerprint": "machine-1", "boot_id": "boot-1", "run": 5, "hostname": "host-a"}
    return KnownNode("gpu-a", instance, **{**known, **facts})


OTHER = beat("instance-2", 1, "boot-2", "machine-2")
SAME_MACHINE = beat("instance-2", 1, "boot-1", "machine-1")


def up(seconds: int, boot: str = "boot-2") -> Heartbeat:
    """The same fingerprint, on a machine that has been up for so long."""
    host = Host(uptime_s=seconds)
    return Heartbeat(1, "gpu-a", "instance-2", 1, 1, fingerprint="machine-1", boot_id=boot, host=host)


NO_FINGERPRINT = Heartbeat(1, "gpu-a", "instance-2", 1, 1)


@pytest.mark.parametrize(
    ("known", "said", "expected"),
    [
        pytest.param(None, beat(), Verdict.REGISTER, id="first beat"),
        pytest.param(node(None), OTHER, Verdict.REGISTER, id="released"),
        pytest.param(node(), beat(), Verdict.CONTINUE, id="the holder"),
        pytest.param(node(), beat(run=6), Verdict.CONTINUE, id="agent restarted"),
        pytest.param(node(), beat(run=6, boot="boot-2"), Verdict.REBOOTED, id="machine rebooted"),
        pytest.param(node(), beat(run=4), "stale_run", id="an earlier run"),
        pytest.param(node(), beat(run=4, boot="boot-2"), "stale_run", id="an earlier run, another boot"),
        pytest.param(node(silent_for_s=59), OTHER, "node_id_in_use", id="holder heard lately"),
        pytest.param(node(silent_for_s=59), SAME_MACHINE, "node_id_in_use", id="heard lately, same machine"),
        pytest.param(node(silent_for_s=1, leaving=True), OTHER, Verdict.REPLACE, id="holder said leaving"),
        pytest.param(node(silent_for_s=60), OTHER, Verdict.REPLACE, id="holder silent and empty"),
        pytest.param(node(silent_for_s=60, claims=1), SAME_MACHINE, Verdict.REPLACE, id="same machine takes its own"),
        pytest.param(node(silent_for_s=60, claims=1), OTHER, "node_id_in_use", id="another machine waits for release"),
        pytest.param(node(silent_for_s=1, leaving=True, claims=1), OTHER, "node_id_in_use", id="left with claims"),
        pytest.param(
            node(silent_for_s=60, claims=1, fingerprint=None),
            NO_FINGERPRINT,
            "node_id_in_use",
            id="two unknown fingerprints are not the same machine",
        ),
        pytest.param(
            node(boot_id="boot-2", run=6, former_boots=frozenset({"boot-1"})),
            beat(run=5, boot="boot-1"),
            Verdict.UNMASK,
            id="the first boot returns, although its run is lower",
        ),
        pytest.param(
            node(cloned_boots=frozenset({"boot-2"})), beat(run=9, boot="boot-2"), "instance_cloned", id="the copy"
        ),
    ],
)
def test_decision(known: KnownNode | None, said: Heartbeat, expected: Verdict | str) -> None:
    try:
        found: Verdict | str = decide(known, None, said, lost_after_s=LOST_AFTER).verdict
    except Problem as problem:
        found = problem.code
    assert found == expected


@pytest.mark.parametrize(
    ("known", "said", "succeeds"),
    [
        pytest.param({}, SAME_MACHINE, True, id="same fingerprint, nothing says otherwise"),
        pytest.param({}, up(3600, boot="boot-1"), True, id="the same boot, whatever its uptime"),
        pytest.param({}, up(40), True, id="started after the holder fell silent"),
        pytest.param({}, up(3600), False, id="up while the holder spoke: a copy"),
        pytest.param({"unheard_for_s": 7200}, up(3600), True, id="the server was away, not the holder alive"),
        pytest.param({"leaving": True, "silent_for_s": 0}, up(3600), False, id="a copy, while the holder left"),
        pytest.param({"leaving": True, "silent_for_s": 0, "claims": 0}, OTHER, False, id="another machine"),
    ],
)
def test_claims_pass_on_to_the_same_machine_only(known: dict[str, Any], said: Heartbeat, succeeds: bool) -> None:
    """A fingerprint may be a template's: a copy that took its original's claims ended tasks that still ran there."""
    holder = node(**{"silent_for_s": 60, "claims": 1, **known})
    decision = decide(holder, None, said, lost_after_s=LOST_AFTER)
    assert (decision.verdict, decision.succeeds) == (Verdict.REPLACE, succeeds)


def test_stale_run_names_the_known_one() -> None:
    with pytest.raises(Problem) as refused:
        decide(node(run=12), None, beat(run=3), lost_after_s=LOST_AFTER)
    assert refused.value.members["known_run"] == 12


def test_in_use_names_the_holder_and_what_to_do() -> None:
    with pytest.raises(Problem) as refused:
        decide(node(silent_for_s=70, claims=2, last_seen_at="T"), None, OTHER, lost_after_s=LOST_AFTER)
    assert refused.value.members["holder"] == {"hostname": "host-a", "last_seen_at": "T"}
    assert "heterofleet nodes release gpu-a" in refused.value.detail


@pytest.mark.parametrize(
    ("elsewhere", "expected"),
    [
        pytest.param({"silent_for_s": 90}, "gpu-b", id="silent and empty: it moves"),
        pytest.param({"silent_for_s": 1}, "gpu-b", id="same boot: the node id was changed"),
        pytest.param({"silent_for_s": 1, "boot_id": "boot-9"}, "instance_cloned", id="alive on another machine"),
        pytest.param({"silent_for_s": 90, "claims": 1}, "instance_mismatch", id="it still holds claims there"),
    ],
)
def test_an_instance_that_comes_with_another_node_id(elsewhere: dict[str, Any], expected: str) -> None:
    facts: dict[str, Any] = {"boot_id": "boot-1", **elsewhere}
    other = KnownNode("gpu-b", "instance-1", **facts)
    try:
        found = decide(None, other, beat(), lost_after_s=LOST_AFTER).unbind_node
    except Problem as problem:
        found = problem.code
    assert found == expected


@pytest.mark.case("FC-012")
def test_two_machines_of_one_template_are_two_nodes() -> None:
    """Machines cloned from one template shared a machine-id, and the server showed one node that flipped."""
    first = Heartbeat(1, "host-a", "instance-a", 1, 1, fingerprint="the-template", boot_id="boot-a")
    second = Heartbeat(1, "host-b", "instance-b", 1, 1, fingerprint="the-template", boot_id="boot-b")
    assert decide(None, None, first, lost_after_s=LOST_AFTER).verdict is Verdict.REGISTER
    assert decide(None, None, second, lost_after_s=LOST_AFTER).verdict is Verdict.REGISTER
