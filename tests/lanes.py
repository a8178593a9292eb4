"""All tests in lanes side by side, and the fuzz of parsers in what they leave of the processor: on two cores most
of the time of the fleet's tests is waiting.

Each lane is one pytest session on nodes and ports of its own (``HF_LAB_NODES``, ``HF_LAB_PORT``), so that none
meets another. A line of output begins with its lane. The exit code is 0 only when all lanes are green; what failed
is said again at the very end, where somebody looks first.

    python -m tests.lanes [words for pytest]
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab import Lab, engine, setup

ROOT = Path(__file__).resolve().parents[1]
FLEET = ("tests/e2e", "tests/integration/distribution", "tests/integration/lab")
FAULTS = (
    "tests/faults",
    "tests/integration/card_health",
    "tests/integration/checkpoints",
    "tests/integration/engine_trouble",
    "tests/integration/models",
)
LIFE = (
    "tests/integration/agent_reconcile",
    "tests/integration/card_giving",
    "tests/integration/disk",
    "tests/integration/engines",
    "tests/integration/layouts",
    "tests/integration/logs",
    "tests/integration/lost_node",
    "tests/integration/process",
    "tests/integration/restore",
    "tests/integration/sleep",
)
ROLES = ("tests/e2e/roles",)
# The updates by script wait most of their time for agents that do not come up, and the fleet's lane is the longest:
# they go where a lane has ended early, on its nodes.
UPDATES = (
    "tests/integration/distribution/test_update.py",
    "tests/integration/distribution/test_update_cut.py",
    "tests/integration/distribution/test_update_states.py",
)
NODES = 13


@dataclass(frozen=True)
class Lane:
    """``paths`` as pytest takes them; ``nodes`` and ``port`` are this lane's alone. ``after``: the lane whose nodes it
    takes over when that has ended."""

    name: str
    paths: tuple[str, ...]
    nodes: str
    port: int
    after: str = ""

    def start(self, words: list[str]) -> subprocess.Popen[str]:
        environ = {"HF_LAB_NODES": self.nodes, "HF_LAB_PORT": str(self.port)}
        return started([sys.executable, "-m", "pytest", *self.paths, *words], environ)


@dataclass(frozen=True)
class Aside:
    """A lane that takes only what the others leave of the processor, so that its time costs theirs nothing."""

    name: str
    command: tuple[str, ...]
    after: str = ""

    def start(self, words: list[str]) -> subprocess.Popen[str]:
        return started(["nice", "-n", "19", sys.executable, *self.command], {})


def started(command: list[str], environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


LANES = (
    Lane("fleet", (*FLEET, *(f"--ignore={path}" for path in ROLES + UPDATES)), "1,2,3", 3333),
    Lane(
        "parts",
        ("tests/unit", "tests/fuzz", "tests/integration", *(f"--ignore={path}" for path in FLEET + FAULTS + LIFE)),
        "4,5",
        3433,
    ),
    Lane("faults", FAULTS, "6,7,8", 3533),
    Lane("updates", UPDATES, "6,7,8", 3833, after="faults"),
    Lane("life", LIFE, "9,10", 3633),
    Lane("roles", ROLES, "11,12,13", 3733),
    Aside("fuzz", ("-m", "tests.fuzz", "--seconds", "20", "--again")),
)
REASON = re.compile(r"E   +\S")
FAILURE = re.compile(r"(FAILED|ERROR) |[a-z0-9_-]+ --seed \d+: ")
REASONS = 30
LONGEST = 240


def main(words: list[str]) -> int:
    # A shell that starts us in the background lets us ignore Ctrl-C, and every test below would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    was_up = engine.version() is not None and bool(setup.existing())
    # Once and for all, so that no lane takes the lab down under another.
    lab = Lab.up(nodes=NODES)
    began = time.monotonic()
    running: dict[str, subprocess.Popen[str]] = {}
    ended = {lane.name: threading.Event() for lane in LANES}
    stopped = threading.Event()

    def end(number: int, frame: Any) -> None:
        stopped.set()
        for process in list(running.values()):
            process.send_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, end)
    codes: dict[str, int] = {}
    reasons: list[str] = []
    failures: list[str] = []

    def follow(lane: Lane | Aside) -> None:
        try:
            if lane.after:
                ended[lane.after].wait()
            codes[lane.name] = signal.SIGINT
            if not stopped.is_set():
                run(lane)
        finally:
            ended[lane.name].set()

    def run(lane: Lane | Aside) -> None:
        process = running[lane.name] = lane.start(words)
        assert process.stdout is not None
        for line in process.stdout:
            print(f"{lane.name} | {line}", end="", flush=True)
            for pattern, found in ((REASON, reasons), (FAILURE, failures)):
                if pattern.match(line):
                    found.append(f"{lane.name} | {line[:LONGEST].rstrip()}")
        codes[lane.name] = process.wait()
        print(f"{lane.name} | ended with {codes[lane.name]} after {time.monotonic() - began:.0f} s", flush=True)

    followers = [threading.Thread(target=follow, args=(lane,)) for lane in LANES]
    for follower in followers:
        follower.start()
    try:
        for follower in followers:
            follower.join()
    except KeyboardInterrupt:  # the terminal has told the lanes, too
        stopped.set()
        for follower in followers:
            follower.join()
    if not was_up and os.environ.get("HF_LAB_KEEP") != "1":
        lab.down()
    # Of the reasons the last, but of the names all: a lane that ended early must not be hidden by one that did not.
    for line in (*reasons[-REASONS:], *failures):
        print(line, flush=True)
    return max(abs(code) for code in codes.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
