"""NVML that hangs, crashes, leaks or is stuck in the kernel: the heartbeat goes on, and says what is wrong."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

import pytest

from runtime.agent.hardware.nvidia import Nvidia
from runtime.agent.hardware.nvml import NAME, NvmlChild
from runtime.agent.hardware.proc import STATE, own_bytes, stat_of
from runtime.agent.hardware.tools import ToolRunner
from tests.integration.agent_link.pace import BEAT_S, HEARTBEAT, Pace, pace
from tests.integration.agent_link.stub_server import Request, StubServer, beat_answer, wait_until
from tests.integration.agent_link.whole_agent import whole_agent
from tests.lab.cards import build
from tests.lab.cards.state import default_state
from tests.lab.stuck import stuck_file

STUCK = f"{NAME} has been stuck in the kernel for "


class Library:
    """The lab's NVML, and the state file that it reads."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cards.json"
        self.state = default_state("test-node", 2)
        self.save()

    def save(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.state))
        new.replace(self.path)

    def fault(self, **fault: Any) -> None:
        self.state["faults"] = {"nvmlDeviceGetMemoryInfo": fault}
        self.save()

    def heal(self) -> None:
        self.state["faults"] = {}
        self.save()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library(tmp_path)
    monkeypatch.setenv("HF_LAB_CARDS", str(made.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build.library().parent))
    return made


class Node:
    """A whole agent that beats every second, and what its server has heard."""

    def __init__(self, server: StubServer, runner: ToolRunner, pace: Pace) -> None:
        self.server = server
        self.pace = pace
        self.runner = runner

    def heard(self, what: Callable[[dict[str, Any]], bool], deadline_s: float = 40) -> dict[str, Any]:
        """The next beat of which ``what`` is true."""
        seen = len(self.server.of(HEARTBEAT))

        def found() -> Optional[Request]:
            return next((beat for beat in self.server.of(HEARTBEAT)[seen:] if what(beat.body)), None)

        wait_until(lambda: found() is not None, deadline_s)
        beat = found()
        assert beat is not None
        return dict(beat.body)

    def says(self, words: str) -> dict[str, Any]:
        return self.heard(lambda body: words in (body.get("gpu_collector_error") or ""))

    def goes_on(self) -> None:
        """Some beats more, as things are."""
        self.server.wait_for(HEARTBEAT, len(self.server.of(HEARTBEAT)) + 4)

    def is_well(self) -> dict[str, Any]:
        return self.heard(lambda body: len(body.get("gpu_stats") or []) == 2 and not body.get("gpu_collector_error"))


@contextmanager
def node(server: StubServer, tmp_path: Path, deadline_s: float = 1.0) -> Iterator[Node]:
    runner = ToolRunner(deadline_s=deadline_s)
    detector = Nvidia(runner, sysfs=tmp_path / "pci", kernel_lines=lambda: ())
    server.answers[HEARTBEAT] = beat_answer(interval_s=BEAT_S)
    agent, _, _ = whole_agent(server.url, tmp_path / "state", detectors=[detector])
    agent._parts.inventory.loop.interval_s = BEAT_S
    with pace(server) as beside:
        agent.start()
        try:
            yield Node(server, runner, beside)
        finally:
            agent.stop()


def test_a_library_that_hangs_costs_no_beat(library: Library, server: StubServer, tmp_path: Path) -> None:
    with node(server, tmp_path) as here:
        here.is_well()
        library.fault(hang=True)
        body = here.says(f"{NAME} did not answer in 1 s")
        assert "gpu_stats" not in body and here.runner.stuck() == []
        here.goes_on()
        library.heal()
        here.is_well()
        assert here.pace.holds(), here.pace.said()


def test_a_library_that_crashes_takes_nothing_with_it(library: Library, server: StubServer, tmp_path: Path) -> None:
    with node(server, tmp_path) as here:
        here.is_well()
        library.fault(signal=int(signal.SIGSEGV))
        body = here.says(f"{NAME} crashed (SIGSEGV) ")
        assert "gpu_stats" not in body and "s after it was asked" in body["gpu_collector_error"]
        here.goes_on()
        library.heal()
        here.is_well()
        assert here.pace.holds(), here.pace.said()


def test_a_child_in_state_d_is_left_alone_and_the_only_one(
    library: Library, server: StubServer, tmp_path: Path
) -> None:
    """A real writer on a frozen file system: not even SIGKILL ends it, as with a card that dies."""
    with node(server, tmp_path) as here, stuck_file() as path:
        here.is_well()
        library.fault(write=str(path))
        body = here.says(STUCK)  # that it did not answer is said for one round only, which a beat may miss
        child = here.runner._stuck[NAME]
        fields = stat_of(child.pid)
        assert fields is not None and fields[STATE] == "D"
        assert f"(process {child.pid})" in body["gpu_collector_error"]
        here.heard(lambda later: STUCK in (later.get("gpu_collector_error") or "") and later != body)
        assert here.runner._stuck[NAME] is child and children_of_nvml() == [child.pid]
        library.heal()
        assert here.pace.holds(), here.pace.said()
    # The file system is thawed: the child ends by the signal that it got long ago.
    wait_until(lambda: here.runner.stuck() == [], 40)
    assert child.poll() == -signal.SIGKILL


def children_of_nvml() -> list[int]:
    """Processes that run the module that loads NVML, wherever they stand."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        fields = stat_of(int(folder.name))
        if fields is None or fields[1] != str(os.getpid()):
            continue
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"nvml_child" in command and fields[STATE] != "Z":
            found.append(int(folder.name))
    return found


def test_a_child_that_grows_is_replaced(library: Library, caplog: pytest.LogCaptureFixture) -> None:
    child = NvmlChild(ToolRunner(deadline_s=10.0), grown_mib=48)
    try:
        assert len(child.ask("collect")["cards"]) == 2
        first = child._child
        assert first is not None
        small = own_bytes(first.pid) or 0
        child.ask("collect")
        assert child._child is first and 0 < small < 48 << 20
        library.fault(leak_mib=40)
        assert len(child.ask("collect")["cards"]) == 2
        assert child._child is None and first.poll() is not None
        assert "has grown over 48 MiB" in caplog.text
        library.heal()
        assert len(child.ask("collect")["cards"]) == 2
        assert child._child is not None and child._child.pid != first.pid
    finally:
        child.close()


def test_the_kernel_would_end_the_child_before_the_agent(library: Library) -> None:
    child = NvmlChild(ToolRunner(deadline_s=10.0))
    try:
        child.ask("collect")
        assert child._child is not None
        assert Path(f"/proc/{child._child.pid}/oom_score_adj").read_text().strip() == "500"
    finally:
        child.close()
