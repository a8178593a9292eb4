"""A 2xx of a task change means that the change is on disk: seen from outside, by strace and by SIGKILL."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.lab.control_plane import ControlPlane
from tests.lab.process import wait_for

CHANGES = 100
KILL_ROUNDS = int(os.environ.get("HF_KILL_ROUNDS", "100"))


@dataclass
class Trace:
    """What strace saw, line by line: requests that came, syncs that began and ended, answers that left."""

    syncs: list[tuple[int, int]] = field(default_factory=list)  # (line where it began, line where it ended)
    answers: list[tuple[int, int]] = field(default_factory=list)  # (line of the request, line of its 2xx)

    def unprotected(self) -> list[tuple[int, int]]:
        """Answers without a sync that began after their request and ended before they left."""
        return [
            (asked, said)
            for asked, said in self.answers
            if not any(asked < began and ended < said for began, ended in self.syncs)
        ]


def read_trace(path: Path, request: str) -> Trace:
    """``request`` is a pattern of the first line of requests that change a task."""
    trace = Trace()
    asked: dict[str, int] = {}
    syncing: dict[str, int] = {}
    reading: dict[str, str] = {}
    for number, line in enumerate(path.read_text(errors="replace").splitlines()):
        thread, _, rest = line.partition(" ")
        if "fdatasync(" in rest or "fsync(" in rest:
            if "unfinished" in rest:
                syncing[thread] = number
            else:
                trace.syncs.append((number, number))
        elif re.search(r"<\.\.\. f(data)?sync resumed", rest):
            trace.syncs.append((syncing.pop(thread), number))
        elif "recvfrom(" in rest and "unfinished" in rest:
            reading[thread] = re.search(r"recvfrom\((\d+)", rest).group(1)  # type: ignore[union-attr]
        elif "recvfrom" in rest and re.search(request, rest):
            match = re.search(r"recvfrom\((\d+)", rest)
            asked[match.group(1) if match else reading[thread]] = number
        elif (match := re.search(r'sendto\((\d+), "HTTP/1\.1 2\d\d', rest)) and match.group(1) in asked:
            trace.answers.append((asked.pop(match.group(1)), number))
    return trace


def traced(plane: ControlPlane, out: Path, work) -> Trace:
    """Run ``work()`` while strace watches the server."""
    tracer = subprocess.Popen(
        ["strace", "-f", "-q", "-s", "120", "-e", "trace=recvfrom,sendto,fdatasync,fsync", "-o", str(out)]
        + ["-p", str(plane.pid)],
        stderr=subprocess.PIPE,
    )
    try:
        wait_for("strace is attached", lambda: "TracerPid:\t0" not in _status(plane) or "not yet", 20)
        work()
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait(20)
    return read_trace(out, r'"POST /api/v1/tasks ')


def _status(plane: ControlPlane) -> str:
    return Path(f"/proc/{plane.pid}/status").read_text()


def create(plane: ControlPlane, task_id: str) -> None:
    body = {"id": task_id, "name": "durable", "image": "app:1", "node_selector": {"nowhere": "yes"}}
    status, answer = plane.request("POST", "/api/v1/tasks", body, timeout=60)
    assert status == 201, answer


def test_every_2xx_of_a_task_change_comes_after_its_fdatasync(plane_factory, tmp_path) -> None:
    assert shutil.which("strace"), "strace is one of the tests' packages: `python -m tests.lab prepare`"
    plane = plane_factory("durable", 3421)

    alone = traced(plane, tmp_path / "alone", lambda: [create(plane, f"alone-{n}") for n in range(CHANGES)])
    assert len(alone.answers) == CHANGES
    assert alone.unprotected() == []

    def side_by_side() -> None:
        with ThreadPoolExecutor(50) as pool:
            list(pool.map(lambda n: create(plane, f"parallel-{n}"), range(CHANGES)))

    parallel = traced(plane, tmp_path / "parallel", side_by_side)
    assert len(parallel.answers) == CHANGES
    assert parallel.unprotected() == []
    assert len(parallel.syncs) < CHANGES, "changes in parallel share their syncs"
    print(f"syncs for {CHANGES} changes: alone {len(alone.syncs)}, 50 in parallel {len(parallel.syncs)}")


@pytest.mark.timeout(900)
def test_sigkill_after_each_2xx_loses_nothing(plane_factory) -> None:
    plane = plane_factory("killed", 3422)
    for number in range(KILL_ROUNDS):
        create(plane, f"kill-{number}")
        plane.kill()
        plane.start()
        status, task = plane.request("GET", f"/api/v1/tasks/kill-{number}")
        assert status == 200, f"round {number}: {task}"
    listed = plane.get("/api/v1/tasks?limit=1000")["tasks"]
    assert {task["id"] for task in listed} == {f"kill-{number}" for number in range(KILL_ROUNDS)}


def test_the_trace_reader_finds_an_answer_without_a_sync(tmp_path) -> None:
    """The check itself can fail: one answer that left before its sync ended, one that had none."""
    (tmp_path / "trace").write_text(
        '10 recvfrom(7, "POST /api/v1/tasks HTTP/1.1\\r\\n"..., 8192, 0, NULL, NULL) = 300\n'
        "11 fdatasync(5 <unfinished ...>\n"
        '10 sendto(7, "HTTP/1.1 201 CREATED\\r\\n"..., 300, 0, NULL, 0) = 300\n'
        "11 <... fdatasync resumed>) = 0\n"
        '10 recvfrom(8, "POST /api/v1/tasks HTTP/1.1\\r\\n"..., 8192, 0, NULL, NULL) = 300\n'
        "11 fdatasync(5) = 0\n"
        '10 sendto(8, "HTTP/1.1 201 CREATED\\r\\n"..., 300, 0, NULL, 0) = 300\n'
    )
    trace = read_trace(tmp_path / "trace", r'"POST /api/v1/tasks ')
    assert trace.answers == [(0, 2), (4, 6)]
    assert trace.unprotected() == [(0, 2)]
