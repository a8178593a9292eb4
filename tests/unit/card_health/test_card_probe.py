"""Which cards owe a probe, what is told of them, and what is done next about one: tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime.agent.card_probe.decide import Do, Situation, Underway, last_line, next_step
from runtime.agent.card_probe.gate import Gate
from runtime.agent.card_probe.memory import FILE, Memory
from runtime.agent.card_probe.owed import MISSING, Owed, held_by, parts_of
from runtime.agent.card_probe.plan import LABEL_PROBE, probe_plan
from runtime.agent.drivers.driver import LABEL_PREFIX, LABEL_UID
from runtime.agent.hardware.inventory import GpuSnapshot
from runtime.agent.hardware.visibility import container_options, given
from runtime.agent.settings import load_settings
from runtime.protocol.hardware import Gpu, GpuCollectFailure, GpuDetection, GpuHolder
from runtime.protocol.settings import SettingsError

A, B = Gpu("GPU-a", "nvidia", index=0), Gpu("GPU-b", "nvidia", index=1)
A1, A2 = (Gpu(f"MIG-a{n}", "nvidia", parent_uuid="GPU-a", profile="1g.10gb", gi_id=n) for n in (1, 2))
WELL = GpuSnapshot(gpus=[A, B])


def bad(*uuids: str, reason: str = "GPU is lost", gpus: list[Gpu] | None = None) -> GpuSnapshot:
    failures = [GpuCollectFailure(uuid, None, reason) for uuid in uuids]
    return GpuSnapshot(gpus=[A, B] if gpus is None else gpus, failures=failures)


def keyless(*gpus: Gpu) -> GpuSnapshot:
    return GpuSnapshot(gpus=list(gpus), detection=[GpuDetection("nvidia", True, "it answers", "fixture", "none")])


@pytest.mark.parametrize(
    ("looks", "owing"),
    [
        pytest.param([WELL, WELL], {}, id="well cards owe nothing"),
        pytest.param([bad("GPU-a")], {"GPU-a": "GPU is lost"}, id="bad at the first look"),
        pytest.param([WELL, bad("GPU-a"), WELL], {"GPU-a": "GPU is lost"}, id="bad once, well since"),
        pytest.param(
            [bad("GPU-a"), bad("GPU-a", reason="needs a reset"), WELL], {"GPU-a": "needs a reset"}, id="the last word"
        ),
        pytest.param([WELL, GpuSnapshot(gpus=[B]), WELL], {"GPU-a": MISSING}, id="gone without a word, and back"),
        pytest.param([WELL, GpuSnapshot(gpus=[B])], {"GPU-a": MISSING}, id="gone without a word"),
        pytest.param([keyless(A, B), keyless(A)], {}, id="a list by index only condemns no card"),
        pytest.param(
            [WELL, GpuSnapshot(gpus=[A, B], failures=[GpuCollectFailure(None, 1, "lost")])],
            {"GPU-b": "lost"},
            id="named by its index",
        ),
        pytest.param(
            [
                GpuSnapshot(gpus=[A, Gpu("GPU-c", "nvidia", index=0)]),
                GpuSnapshot(gpus=[A, Gpu("GPU-c", "nvidia", index=0)], failures=[GpuCollectFailure(None, 0, "lost")]),
            ],
            {},
            id="an index that two cards claim names none",
        ),
        pytest.param(
            [WELL, GpuSnapshot(gpus=[], failures=[GpuCollectFailure("GPU-a")], collector_error="hangs")],
            {},
            id="a look that failed as a whole condemns no card",
        ),
        pytest.param([WELL, GpuSnapshot(gpus=None)], {}, id="an unknown list condemns no card"),
        pytest.param(
            [WELL, GpuSnapshot(gpus=None, collector_error="hangs"), GpuSnapshot(gpus=[B])],
            {"GPU-a": MISSING},
            id="gone over a failing tool",
        ),
        pytest.param(
            [GpuSnapshot(gpus=[A, A1, A2]), GpuSnapshot(gpus=[A, A1])], {}, id="slices come and go without a debt"
        ),
        pytest.param(
            [bad("MIG-a1", gpus=[A, A1, A2]), GpuSnapshot(gpus=[A, A1, A2])],
            {"MIG-a1": "GPU is lost"},
            id="a slice that fails alone",
        ),
        pytest.param(
            [GpuSnapshot(gpus=[Gpu("virtual-0", "virtual"), A]), WELL], {}, id="virtual cards go when real ones come"
        ),
    ],
)
def test_who_owes_a_probe(looks: list[GpuSnapshot], owing: dict[str, str]) -> None:
    at = iter(looks)
    gate = Gate(lambda: next(at), {})
    for _ in looks[1:]:
        gate.snapshot()
    assert {uuid: debt.why for uuid, debt in gate.debts()[1].items()} == owing


class Looks:
    """The inventory, as a test wants it."""

    def __init__(self, now: GpuSnapshot = WELL) -> None:
        self.now = now

    def __call__(self) -> GpuSnapshot:
        return self.now


def reasons(seen: GpuSnapshot) -> dict[str | None, str]:
    return {failure.uuid: failure.reason for failure in seen.failures}


def test_a_card_is_named_until_its_probe_ends_well() -> None:
    looks, calls = Looks(bad("GPU-a")), []
    gate = Gate(looks, {})
    gate.on_change = lambda: calls.append("woken")
    assert reasons(gate.snapshot()) == {"GPU-a": "GPU is lost"}
    assert calls == ["woken"]
    looks.now = GpuSnapshot(gpus=[A, B])
    assert "GPU-a" in reasons(gate.snapshot()), "no beat sees it well in between"
    (text,) = reasons(gate.snapshot()).values()
    assert text.startswith("probe container not yet run; out since 20") and text.endswith(": GPU is lost")
    gate.say("GPU-a", "probe container exited with 3")
    (text,) = reasons(gate.snapshot()).values()
    assert text.startswith("probe container exited with 3; out since")
    assert calls == ["woken"] * 2, "it was bad, and is well"
    gate.begin(["GPU-a"])
    assert gate.paid(["GPU-a"]) and gate.snapshot() is looks.now


def test_a_card_that_was_bad_during_its_probe_owes_another() -> None:
    looks = Looks()
    gate = Gate(looks, {"GPU-a": Owed("2026-01-01T00:00:00Z", "lost")})
    gate.begin(["GPU-a"])
    for looks.now in (bad("GPU-a"), GpuSnapshot(gpus=[A, B])):
        gate.snapshot()
    assert not gate.paid(["GPU-a"]) and "GPU-a" in reasons(gate.snapshot())
    gate.begin(["GPU-a"])
    assert gate.paid(["GPU-a"])


def test_what_a_collection_that_failed_says_is_left_as_it_is() -> None:
    looks = Looks(GpuSnapshot(gpus=[A, B], collector_error="nvidia-smi did not answer in 10 s"))
    assert Gate(looks, {"GPU-a": Owed("2026-01-01T00:00:00Z", "lost")}).snapshot() is looks.now


def test_what_a_probe_holds_is_held_by_no_stranger() -> None:
    holders = [GpuHolder("GPU-a", 7, container_id="c1", ours=False), GpuHolder("GPU-a", 8, ours=False)]
    gate = Gate(Looks(GpuSnapshot(gpus=[A], holders=holders)), {})
    assert gate.snapshot().holders == holders
    gate.own("c1")
    assert gate.snapshot().holders == holders[1:]


def situation(**facts: Any) -> Situation:
    return Situation(**{"well": True, "timeout_s": 60, **facts})


def ran(ran_s: float = 5, **facts: Any) -> Underway:
    return Underway(ran_s, **facts)


@pytest.mark.parametrize(
    ("card", "do", "said"),
    [
        pytest.param(situation(), Do.RUN, "runs", id="well and free"),
        pytest.param(situation(well=False), Do.WAIT, "not yet run", id="still bad"),
        pytest.param(situation(well=None), Do.WAIT, "not yet run", id="its tool fails"),
        pytest.param(situation(held_by="task x"), Do.WAIT, "task x holds the card", id="a task is on it"),
        pytest.param(situation(users_known=False), Do.WAIT, "it is not known", id="who is on it is not known"),
        pytest.param(situation(leftover=True), Do.WAIT, None, id="an earlier probe is still there"),
        pytest.param(situation(due=False), Do.WAIT, None, id="between two tries"),
        pytest.param(situation(underway=ran()), Do.WAIT, "runs", id="under way"),
        pytest.param(situation(underway=ran(), well=None), Do.WAIT, "runs", id="under way while the tool fails"),
        pytest.param(situation(underway=ran(60)), Do.FAILED, "did not end in 60 s", id="hangs"),
        pytest.param(situation(underway=ran(ended=True, exit_code=0)), Do.PASSED, None, id="ended well"),
        pytest.param(situation(underway=ran(99, ended=True, exit_code=0)), Do.PASSED, None, id="ended well unseen"),
        pytest.param(
            situation(underway=ran(ended=True, exit_code=3, last_line="no kernel image")),
            Do.FAILED,
            "exited with 3: no kernel image",
            id="ended badly",
        ),
        pytest.param(situation(underway=ran(ended=True)), Do.FAILED, "without an exit code", id="never ran"),
        pytest.param(situation(underway=ran(there=False)), Do.FAILED, "removed before", id="removed by somebody"),
        pytest.param(
            situation(underway=ran(start_error="no such device")), Do.FAILED, "not be started: no such", id="refused"
        ),
        pytest.param(situation(underway=ran(ended=True, exit_code=0), well=False), Do.VOID, "not yet", id="bad again"),
        pytest.param(situation(underway=ran(), held_by="task x"), Do.WAIT, "runs", id="a task came beside it"),
    ],
)
def test_the_next_step(card: Situation, do: Do, said: str | None) -> None:
    step = next_step(card)
    assert step.do is do and (said in (step.said or "") if said is not None else step.said is None), step


@pytest.mark.parametrize(
    ("card", "users", "who"),
    [
        (A, {}, None),
        (A, {"GPU-b": "task x"}, None),
        (A, {"GPU-a": "task x"}, "task x"),
        (A, {"MIG-a2": "task x"}, "task x"),
        (A1, {"MIG-a1": "task x"}, "task x"),
        (A1, {"GPU-a": "task x"}, "task x"),
        (A1, {"MIG-a2": "task x"}, None),
    ],
)
def test_who_holds_a_card_or_a_part_of_it(card: Gpu, users: dict[str, str], who: str | None) -> None:
    assert held_by(card, [A, A1, A2, B], users) == who


def test_a_probe_is_given_its_card_alone_as_a_task_is_and_is_no_task() -> None:
    options = given([A], WELL, ["runc", "nvidia"], container_options)
    plan = probe_plan("p", "probe:1", ["check", "-q"], A, (A,), options, "gpu-a")
    assert plan.env["NVIDIA_VISIBLE_DEVICES"] == "GPU-a" and plan.host_config == {"Runtime": "nvidia"}
    assert plan.command == ["check", "-q"] and plan.network == "none" and not plan.mounts
    assert plan.labels == {LABEL_PROBE: "GPU-a", f"{LABEL_PREFIX}node": "gpu-a"} and LABEL_UID not in plan.labels
    assert "CUDA_VISIBLE_DEVICES" in plan.unset
    assert probe_plan("p", "probe:1", [], A, (A,), options, "gpu-a").command is None
    assert parts_of(A, [A, B]) == (A,)
    assert parts_of(A, [A, A1, A2, B]) == (A1, A2), "a card that is cut is given out by its slices"


def test_debts_outlive_the_agent(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    assert memory.read() == {} and not (tmp_path / FILE).exists()
    owed = {"GPU-a": Owed("2026-01-01T00:00:00Z", "lost")}
    assert memory.write(owed)
    assert Memory(tmp_path).read() == owed
    memory.forget()
    assert memory.read() == {}
    for rubbish in ("", "[]", '{"cards": 3}', '{"cards": {"GPU-a": {"since": 3}}}', "\0"):
        (tmp_path / FILE).write_text(rubbish)
        assert memory.read() == {}, rubbish
    assert not Memory(tmp_path / "no-such-folder").write(owed)


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (b"", ""),
        (b"\n \n", ""),
        (b"one\ntwo \n\n", "two"),
        (b"\x1b[31mred\xff", "?[31mred\ufffd"),
        (b"x" * 999, "x" * 200),
    ],
)
def test_the_last_words_of_a_probe(output: bytes, line: str) -> None:
    assert last_line(output) == line


@pytest.mark.parametrize(
    ("hardware", "path"),
    [
        ({"probe_image": "repo/probe:1", "probe_command": ["a"], "probe_timeout_s": 5}, None),
        ({"probe_command": ["a"]}, "hardware.probe_command"),
        ({"probe_image": "Not An Image"}, "hardware.probe_image"),
        ({"probe_image": "p", "probe_timeout_s": 0}, "hardware.probe_timeout_s"),
    ],
)
def test_settings(hardware: dict[str, Any], path: str | None) -> None:
    given_settings = {f"hardware.{name}": value for name, value in hardware.items()}
    words = {"server_url": "https://server:3333", "api_key": "k9-Vq2-xT7-bL4-pR8", **given_settings}
    if path is None:
        assert load_settings(None, {}, words).settings.hardware.probe_timeout_s == 5
    else:
        with pytest.raises(SettingsError) as refused:
            load_settings(None, {}, words)
        assert path in str(refused.value)
