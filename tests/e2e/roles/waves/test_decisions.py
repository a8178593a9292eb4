"""What the role decides from facts: whether a node is confirmed, whether a wave begins, what the table says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

_PATH = Path(__file__).resolve().parents[4] / "roles" / "agent" / "filter_plugins" / "agent_waves.py"
_SPEC = importlib.util.spec_from_file_location("agent_waves", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
waves = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(waves)

RELEASE = "1.2.0-abc-01234567"


def node(**changes: Any) -> dict[str, Any]:
    return {
        "id": "gpu-a",
        "state": "online",
        "run": 8,
        "instance_id": "i-1",
        "agent": {"version": "1.2.0", "commit": "abc", "dirty": False},
        "docker": {"available": True},
        "gpus": [{"uuid": "c-1", "health": "ok"}, {"uuid": "c-2", "health": "lost"}],
        "warnings": [{"code": "clock_skew", "detail": "The clock is 40 s ahead."}],
        **changes,
    }


WAS = waves.before(node(run=7))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"run": 1, "instance_id": "i-2"}, ""),  # another instance counts from the beginning
        ({"gpus": [{"uuid": "c-1", "health": "ok"}, {"uuid": "c-2", "health": "ok"}]}, ""),
        ({"run": 7}, "nothing of an agent that was started after the change"),
        ({"state": "unreachable"}, "the node is unreachable"),
        ({"agent": None}, "it hears None-None, wanted 1.2.0-abc"),
        ({"agent": {"version": "1.2.0", "commit": "abc", "dirty": True}}, "it hears 1.2.0-abc-dirty, wanted 1.2.0-abc"),
        ({"gpus": [{"uuid": "c-1", "health": "suspect"}]}, "cards that were well are not: c-1"),
        ({"gpus": None}, "cards that were well are not: c-1"),
        ({"docker": {"available": False}}, "Docker was available and is not"),
        ({"warnings": [{"code": "gpu_xid", "detail": "Card c-1: XID 79."}]}, "Card c-1: XID 79."),
    ],
)
def test_a_node_is_confirmed_when_it_runs_that_build_and_is_as_well_as_before(
    changes: dict[str, Any], why: str
) -> None:
    found = waves.missing({"status": 200, "json": node(**changes)}, WAS, RELEASE)
    assert "; ".join(found) == why if not why else why in "; ".join(found)
    assert bool(found) == bool(why)


def test_a_node_of_which_nothing_was_known_has_only_to_run_that_build() -> None:
    answer = {"status": 200, "json": node(run=1, warnings=[{"code": "x", "detail": "x"}], gpus=None)}
    assert waves.missing(answer, waves.before({}), RELEASE) == []
    assert waves.missing({"status": 404, "json": {"detail": "There is no node."}}, {}, RELEASE) == [
        "it answers There is no node."
    ]
    assert waves.missing({"status": -1, "msg": "Connection refused"}, {}, RELEASE) == ["it answers Connection refused"]


@pytest.mark.parametrize(
    ("before", "way_back", "result", "more"),
    [
        ("a", {"result": "changed", "to": "a"}, "restored", ""),
        ("a", {"result": "unchanged", "to": "a"}, "restored", ""),
        # A way back that failed, and was itself taken back, names where it was to go.
        ("a", {"result": "restored", "to": "a"}, "failed", ""),
        ("a", {"result": "failed", "to": "a"}, "failed", ""),
        # Nowhere to go: what is there is still the change's own word.
        ("b", {"result": "changed", "to": "b"}, "failed", "; it ran this release before"),
        ("", {"result": "changed", "to": "b"}, "failed", "; no agent ran before"),
    ],
)
def test_only_a_host_that_went_back_is_called_restored(
    before: str, way_back: dict[str, Any], result: str, more: str
) -> None:
    told = waves.put_back({"from": before, "to": "b", "reason": "not heard"}, way_back)
    assert (told["result"], told["from"], told["to"]) == (result, before, "b")
    assert told["reason"].startswith("not heard" + more)


def host(name: str, wave: int = 0, result: str = "", *, run: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "wave": {"number": wave, "stop": "", "gone": {}} if wave else {},
        "outcome": {"result": result, "from": "a", "to": "b", "reason": ""} if result else {},
        "confirmed": {"node_id": name, "run": run} if run else {},
        "uncordoned": {},
        "cordon": {},
        **more,
    }


@pytest.mark.parametrize("result", ["failed", "restored", ""])
def test_nothing_begins_after_a_wave_that_is_not_well(result: str) -> None:
    """Also when a host of it ended in the middle and has no word at all."""
    facts = [host("a", 1, result), host("b", 1, "changed"), host("c")]
    assert waves.begin_wave(facts, ["c"], None, False) == {
        "number": 2,
        "stop": "an earlier wave did not come back well: a",
        "gone": {},
    }


def test_a_wave_begins_when_those_before_are_well() -> None:
    facts = [host("a", 1, "changed"), host("b", 1, "unchanged"), host("r", 1, "refused"), host("c"), host("later")]
    assert waves.begin_wave(facts, ["c"], None, False) == {"number": 2, "stop": "", "gone": {}}
    assert waves.begin_wave(facts, ["c"], None, True)["stop"] == "a stop was asked for"
    assert waves.begin_wave(facts, ["c"], None, False, "stop")["stop"].endswith("did not come back well: r")
    assert waves.begin_wave([host("a"), host("b")], ["a", "b"], None, False)["number"] == 1


def test_a_control_plane_that_does_not_answer_has_not_said_that_all_is_well() -> None:
    facts = [host("a", 1, "changed", run=7), host("c")]
    silent = "the control plane does not say how"
    assert waves.begin_wave(facts, ["c"], None, False, in_vain=True)["stop"].startswith(silent)
    assert waves.begin_wave(facts, ["a", "c"], None, False, in_vain=True)["stop"] == ""  # the first wave
    told = waves.summary(facts[:1], None, "upgrade", in_vain=True)
    assert silent in told["text"] and told["bad"] == []


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({"id": "a", "state": "unreachable", "run": 8}, "was confirmed, and is unreachable to the control plane now"),
        ({"id": "a", "state": "online", "run": 9}, "was confirmed, and its agent has been started again since"),
        ({"id": "other", "state": "online", "run": 8}, "was confirmed, and is not known to the control plane now"),
    ],
)
def test_a_confirmation_has_to_hold_until_the_next_wave(now: dict[str, Any], why: str) -> None:
    facts = [host("a", 1, "changed", run=8), host("c")]
    begun = waves.begin_wave(facts, ["c"], [now], False)
    assert (begun["gone"], begun["stop"]) == ({"a": why}, "an earlier wave did not come back well: a")
    told = waves.summary(facts, [now], "upgrade")
    assert (told["bad"], told["rows"][0]["result"], told["rows"][0]["reason"]) == (["a", "c"], "failed", why)
    assert waves.begin_wave(facts, ["c"], [{"id": "a", "state": "online", "run": 8}], False)["stop"] == ""


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (node(), ""),
        (node(state="unreachable"), "is as wanted by its own word, and is unreachable to the control plane now"),
        (
            node(agent={"version": "1.1.0", "commit": "old"}),
            "is as wanted by its own word, and the control plane hears ",
        ),
        (node(id="other"), "is as wanted by its own word, and is not known to the control plane now"),
    ],
)
def test_a_host_that_is_right_already_counts_when_the_control_plane_says_so_too(now: dict[str, Any], why: str) -> None:
    """A run that was cut before it had asked leaves such a host."""
    found = {"agent_outcome": {"result": "unchanged", "to": RELEASE}, "agent_found": {"node_id": "gpu-a"}}
    facts = waves.facts_of(["a"], [{**found, "agent__wave": {"number": 1, "stop": ""}}])
    assert "".join(waves.fallen(facts, [now]).values()).startswith(why)
    assert bool(waves.begin_wave(facts, ["c"], [now], False)["stop"]) == bool(why)
    assert waves.fallen(facts, None) == {}, "without a token nobody is asked"


def test_a_host_without_an_agent_is_asked_for_nowhere() -> None:
    """As after an uninstallation: there was nothing to remove."""
    gone = {"agent_outcome": {"result": "unchanged", "to": ""}, "agent_found": {"node_id": "gpu-a"}}
    assert waves.fallen(waves.facts_of(["a"], [gone]), []) == {}


def test_the_table_tells_of_every_host_also_of_one_that_never_answered() -> None:
    restored = host("b", 2, "restored")
    restored["outcome"]["reason"] = "it ends at once\n    its journal"
    left = host("c", 2, "failed", cordon={"reason": "heterofleet-fleet x", "owner": "me"})
    told = waves.summary([host("a", 1, "changed"), restored, left, host("d", 2), host("e")], None, "upgrade")
    assert told["bad"] == ["b", "c", "d", "e"]
    assert told["text"].splitlines() == [
        "upgrade: 1 changed, 1 restored, 2 failed, 1 skipped",
        "HOST  RESULT    FROM  TO  REASON",
        "a     changed   a     b",
        "b     restored  a     b   it ends at once",
        "c     failed    a     b   stays cordoned (heterofleet-fleet x) until a run finds it well",
        "d     failed              ended in the middle of its change (unreachable?); the next run goes on from there",
        "e     skipped             its turn did not come: unreachable, or refused before",
        "waves: 1 of 2 done; left: 2 (run it again when what stopped it is put right)",
        "b:",
        "    it ends at once",
        "        its journal",
    ]


def test_the_table_tells_of_different_builds() -> None:
    other = node(id="gpu-b", agent={"version": "1.1.0", "commit": "old", "dirty": True})
    told = waves.summary([host("gpu-a", 1, "changed", run=8)], [node(), node(id="c"), other], "upgrade")
    assert (
        told["text"].splitlines()[-1]
        == "the control plane's nodes run different builds: 2 1.2.0-abc, 1 1.1.0-old-dirty"
    )
    assert "different" not in waves.summary([], [node(), node(id="c")], "upgrade")["text"]


@pytest.mark.parametrize(
    ("moves", "both"),
    [
        ([("b-1-00000000", "a-1-00000000"), ("b-1-11111111", "a-1-11111111")], []),
        ([("b-1-00000000", "a-1-00000000"), ("a-1-11111111", "b-1-11111111")], ["a-1", "b-1"]),
        ([("b-1-00000000", "a-1-00000000"), ("c-1-11111111", "b-1-11111111"), ("", "")], []),
        ([("a-1-00000000", "a-1-11111111")], []),
    ],
)
def test_a_rollback_that_would_go_both_ways_is_seen(moves: list[tuple[str, str]], both: list[str]) -> None:
    assert waves.both_ways([{"release": here, "previous": before} for here, before in moves]) == both
