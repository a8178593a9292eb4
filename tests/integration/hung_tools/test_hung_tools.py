"""Tools of two vendors that hang, in ways that a kill ends and in one that nothing ends: the heartbeat goes on, and
says which tool and for how long. (NVML: with the agent's link.)"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.hardware.proc import STATE, stat_of
from runtime.agent.hardware.tools import ToolRunner
from runtime.agent.hardware.vendors.iluvatar import ILUVATAR
from runtime.agent.hardware.vendors.metax import METAX
from runtime.agent.hardware.vendors.plain import PlainDetector, Vendor
from tests.fuzz.texts import FOLDER
from tests.integration.agent_link.pace import BEAT_S, HEARTBEAT, Pace, pace
from tests.integration.agent_link.stub_server import StubServer, beat_answer, stub_server, wait_until
from tests.integration.agent_link.whole_agent import whole_agent
from tests.lab.stuck import stuck_file

DEADLINE_S = 1.0

VENDORS = [(ILUVATAR, "ixsmi", "table_sick.txt"), (METAX, "mx-smi", "table_state.txt")]
ILL = {"asleep": "exec sleep 9999", "deaf": "trap '' TERM INT HUP; sleep 9999 & wait"}


class Tool:
    """A vendor's tool that prints a table, until it is told to do something else."""

    def __init__(self, folder: Path, name: str, table: str) -> None:
        self.path, self._mode, self._starts = folder / name, folder / "mode", folder / "starts"
        self._mode.write_text("")
        self._starts.write_text("")
        self.path.write_text(
            f"#!/bin/sh\nif [ -s {self._mode} ]; then echo $$ >> {self._starts}; fi\n. {self._mode}\n"
            f"cat {FOLDER / name / table}\n"
        )
        self.path.chmod(0o755)

    def does(self, script: str) -> None:
        new = self._mode.with_suffix(".new")
        new.write_text(script + "\n" if script else "")
        new.replace(self._mode)

    def starts(self) -> list[int]:
        """Process ids of all starts since it was first told to hang."""
        return [int(line) for line in self._starts.read_text().split()]


class Node:
    def __init__(self, server: StubServer, runner: ToolRunner, agent: Any, pace: Pace) -> None:
        self.server, self.runner, self.agent, self.pace = server, runner, agent, pace

    def heard(self, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next beat of which ``what`` is true."""
        seen = len(self.server.of(HEARTBEAT))
        found = wait_until(lambda: [b.body for b in self.server.of(HEARTBEAT)[seen:] if what(b.body)], 30)
        return dict(found[0])

    def says(self, words: str) -> str:
        return str(self.heard(lambda body: words in (body.get("gpu_collector_error") or ""))["gpu_collector_error"])

    def is_well(self) -> None:
        self.heard(lambda body: bool(body.get("gpu_stats")) and not body.get("gpu_collector_error"))


@contextmanager
def running(vendor: Vendor, tool: Tool, folder: Path) -> Iterator[Node]:
    runner = ToolRunner(deadline_s=DEADLINE_S)
    settings = {tool.path.name: str(tool.path)}
    detector = PlainDetector(vendor, runner, settings, sysfs=folder / "pci", root=folder)
    with stub_server() as server, pace(server) as beside:
        server.answers[HEARTBEAT] = beat_answer(interval_s=BEAT_S)
        agent, *_ = whole_agent(server.url, folder / "state", detectors=[detector], runner=runner)
        agent._parts.inventory.loop.interval_s = BEAT_S
        agent.start()
        try:
            yield Node(server, runner, agent, beside)
        finally:
            agent.stop()


def alive(pid: int) -> bool:
    fields = stat_of(pid)
    return fields is not None and fields[STATE] != "Z"


def stuck_writers(path: Path) -> list[int]:
    """Processes in state D that write to a file."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        fields = stat_of(int(folder.name))
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if fields is not None and fields[STATE] == "D" and f"of={path}".encode() in command:
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize(
    ("vendor", "name", "table", "ill"),
    [(*vendor, ill) for vendor, ill in zip(VENDORS, ILL)],
    ids=["iluvatar-asleep", "metax-deaf"],
)
def test_a_tool_that_never_ends_costs_no_beat(vendor: Vendor, name: str, table: str, ill: str, tmp_path: Path) -> None:
    tool = Tool(tmp_path, name, table)
    with running(vendor, tool, tmp_path) as here:
        here.is_well()
        tool.does(ILL[ill])
        here.says(f"{name} did not answer in {DEADLINE_S:g} s")
        wait_until(lambda: len(tool.starts()) > 1, 30)
        assert len([pid for pid in tool.starts() if alive(pid)]) <= 1
        tool.does("")
        here.is_well()
        assert here.runner.stuck() == [] and not any(alive(pid) for pid in tool.starts())
        assert here.pace.holds(), here.pace.said()


@pytest.mark.parametrize(
    ("vendor", "name", "table", "wrapped"),
    [(*VENDORS[0], ""), (*VENDORS[1], ""), (*VENDORS[1], " & wait"), (*VENDORS[1], " &")],
    ids=["iluvatar", "metax", "metax-by-a-script", "metax-behind-a-tool-that-answers"],
)
def test_a_tool_in_state_d_is_left_alone_and_the_only_one(
    vendor: Vendor, name: str, table: str, wrapped: str, tmp_path: Path
) -> None:
    tool = Tool(tmp_path, name, table)
    with running(vendor, tool, tmp_path) as here, ExitStack() as frozen:
        path = frozen.enter_context(stuck_file())
        here.is_well()
        tool.does(f"{'' if wrapped else 'exec '}dd if=/dev/zero of={path} bs=1 count=1 2>/dev/null{wrapped}")
        told = here.says(f"{name} has been stuck in the kernel for ")
        (writer,) = stuck_writers(path)  # one that was killed on its way there is no second
        starts = tool.starts()
        assert f"(process {writer})" in told
        os.kill(writer, signal.SIGKILL)
        here.heard(lambda body: (body.get("gpu_collector_error") or told) != told)
        assert stuck_writers(path) == [writer] and tool.starts() == starts
        assert here.agent.status().stuck_tools == [name]
        tool.does("")
        frozen.close()
        wait_until(lambda: not alive(writer), 40)
        here.is_well()
        assert here.runner.stuck() == []
        assert here.pace.holds(), here.pace.said()
