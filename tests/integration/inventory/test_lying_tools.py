"""Tools that hang, crash, print without end, print rubbish, or leave something running: no card comes out of it, none
goes, and the error says which tool and what it did. And what they need around them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import pytest

from runtime.agent.hardware.detectors import all_detectors
from runtime.agent.hardware.inventory import GpuSnapshot, Inventory
from runtime.agent.hardware.proc import STATE, stat_of
from runtime.agent.hardware.report import as_table, report_of
from runtime.agent.hardware.tools import ToolRunner
from tests.fuzz.texts import FOLDER
from tests.integration.inventory.fake_tools import inventory, script
from tests.integration.waiting import until

TABLE = FOLDER / "npu-smi" / "table_hbm_two_chips.txt"
CARDS = [("ascend", index, "ascend-ascend999-64g") for index in (4, 5, 6)]
DEADLINE_S = 5.0
LONG_S = 60.0
"""Many deadlines: only what is waited for without one takes so long."""


class Machine:
    """All detectors, with these tools on disk. Every tool writes down its process id when it starts."""

    def __init__(self, folder: Path, tools: Mapping[str, str], deadline_s: float = DEADLINE_S) -> None:
        self.folder = folder
        self.runner = ToolRunner(deadline_s=deadline_s)
        self.paths = {name: str(self.does(name, body)) for name, body in tools.items()}
        detectors = all_detectors(self.runner, self.paths)
        self._inventory = Inventory(detectors, self.runner, node_id="node", state_dir=None)

    def does(self, name: str, body: str) -> Path:
        return script(self.folder / name, f"echo $$ >> {self.folder}/starts\n{body}")

    def look(self) -> GpuSnapshot:
        self._inventory.round()
        return self._inventory.snapshot()

    def report(self) -> dict[str, Any]:
        return report_of(self.look())

    def left(self) -> list[int]:
        """What still runs of all that was started and wrote down its process id."""
        return [pid for pid in self.wrote("starts") if running(pid)]

    def wrote(self, name: str) -> list[int]:
        path = self.folder / name
        return [int(line) for line in path.read_text().split()] if path.exists() else []


def running(pid: int) -> bool:
    fields = stat_of(pid)
    return fields is not None and fields[STATE] != "Z"


def cards(snapshot: GpuSnapshot) -> list[tuple[Optional[str], Optional[int], Optional[str]]]:
    return [(gpu.vendor, gpu.index, gpu.gpu_class) for gpu in snapshot.gpus or []]


NO_LIBRARY = "error while loading shared libraries: libixml.so: cannot open shared object file"
LIES = {
    "mthreads-gmi": (
        "yes '| 0 | MTT Z9 | 1000MiB(2000MiB) |' | head -c 200000000",
        "printed more than 4 MiB, and was ended",
    ),
    "hy-smi": ("head -c 900000 /dev/urandom", "has neither cards nor an error that is known"),
    "cnmon": (f"head -c 600 '{FOLDER}/cnmon/table_two_cards.txt'; kill -SEGV $$", "was ended by SIGSEGV"),
    "brsmi": ("echo 'brsmi: cannot open the device node'", "has neither cards nor an error that is known"),
    "npu-smi": (f"cat '{TABLE}'; exec sleep 9999", f"did not answer in {DEADLINE_S:g} s"),
    "xpu-smi": ("exit 3", "ended with status 3 and no word"),
    "ixsmi": (
        f"echo 'ixsmi: {NO_LIBRARY}' >&2; exit 127",
        "has failed: error while loading",
    ),
    "nvidia-smi": ("trap '' TERM INT HUP; while :; do sleep 9999; done", f"did not answer in {DEADLINE_S:g} s"),
    "mx-smi": ("printf '%3000000s' x", "KiB: that is no list of cards"),
    "efsmi": ("sh -c 'kill -KILL $$'; exit $?", "was ended by SIGKILL"),
}
"""Tool -> what it does, and the words of the error."""


def test_all_vendors_tools_lie_at_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {name: body for name, (body, _) in LIES.items()})
    began = time.monotonic()
    report = machine.report()
    assert time.monotonic() - began < LONG_S
    assert report["gpus"] == report["gpu_collect_failures"] == report["classes"] == []
    assert report["source"] == "unavailable"
    whys = {one["vendor"]: one["why"] for one in report["detection"] if not one["found"]}
    assert len(whys) == len(LIES) and report["error"] == "; ".join(whys.values())
    for name, (_, words) in LIES.items():
        (why,) = (why for why in whys.values() if why.startswith(name))
        assert words in why
    assert all(why in as_table(report) for why in whys.values())
    assert machine.left() == [] and machine.runner.stuck() == []


@pytest.mark.parametrize("name", LIES)
def test_a_tool_that_lies_takes_no_card_away(name: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"npu-smi": f"cat '{TABLE}'"}, LONG_S)
    assert cards(machine.look()) == CARDS
    machine.does("npu-smi", LIES[name][0])
    machine.runner.deadline_s = 2.0
    snapshot = machine.look()
    machine.runner.deadline_s = LONG_S
    assert cards(snapshot) == CARDS and snapshot.failures == snapshot.stats == []
    assert (snapshot.collector_error or "").startswith("npu-smi")
    machine.does("npu-smi", f"cat '{TABLE}'")
    assert machine.look().collector_error is None


@pytest.mark.parametrize(
    "body",
    [
        f"cat '{TABLE}' >&2",
        f"cat '{TABLE}'; exit 1",
        f"sleep 9999 & echo $! >> \"$STARTS\"; cat '{TABLE}'",
        f"(setsid sleep 9999 >/dev/null 2>&1 & echo $! >> \"$ALIVE\"); cat '{TABLE}'",
    ],
    ids=["on the other stream", "with a status", "with a child that keeps the output open", "with a daemon"],
)
def test_odd_ways_to_print_a_table_are_read_all_the_same(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STARTS", str(tmp_path / "starts"))
    monkeypatch.setenv("ALIVE", str(tmp_path / "alive"))
    machine = Machine(tmp_path, {"npu-smi": body}, deadline_s=LONG_S)
    began = time.monotonic()
    snapshot = machine.look()
    assert cards(snapshot) == CARDS and snapshot.collector_error is None
    assert time.monotonic() - began < LONG_S
    until("nothing runs that holds its output", lambda: machine.left() == [])
    assert all(running(pid) for pid in machine.wrote("alive")), "a daemon holds none of it"
    for pid in machine.wrote("alive"):
        os.kill(pid, signal.SIGKILL)


def test_a_tool_finds_its_vendors_libraries(tmp_path: Path) -> None:
    needs = (
        'case ":$LD_LIBRARY_PATH:" in *:/usr/local/Ascend/driver/lib64:*) ;; *) echo no library >&2; exit 127;; esac'
    )
    snapshot = Machine(tmp_path, {"npu-smi": f"{needs}\ncat '{TABLE}'"}).look()
    assert snapshot.collector_error is None and cards(snapshot) == CARDS
    assert [failure.index for failure in snapshot.failures] == [5]


def test_a_tool_that_hangs_on_what_only_adds_has_cards_all_the_same(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"npu-smi": f"case \"$*\" in *board*) exec sleep 9999;; esac\ncat '{TABLE}'"}, 1.0)
    snapshot = machine.look()
    assert snapshot.collector_error is None and cards(snapshot) == CARDS
    assert machine.left() == []


def test_a_path_that_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    report, table = inventory("--tool", f"npu-smi={tmp_path}/absent", "--tool", f"mx-smi={tmp_path}/text")
    assert report["gpus"] == [] and report["source"] == "unavailable"
    for words in (f"npu-smi: {tmp_path}/absent: No such file or directory", f"mx-smi: {tmp_path}/text: Permission"):
        assert words in report["error"] and words in table
