"""The database is somebody else's for a while, or has no room: patience, 503, and nothing is lost."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.server.store import engines
from tests.integration.bad_input.places import fill, small_disk
from tests.integration.restore.planes import Speaker, World, is_status, submit, task
from tests.integration.server_core.plane import Plane, wait_until

NODES = 100
WORKERS = 20
ROUNDS = 2


class Crowd:
    """Threads that count how calls are answered; an exception in one of them is raised by ``join``."""

    def __init__(self) -> None:
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.without_advice: list[bytes] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._faults: list[BaseException] = []

    def start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as fault:
                self._faults.append(fault)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def count(self, what: str, answer: Any) -> int:
        with self._lock:
            self.statuses[(what, answer.status)] += 1
            if answer.status == 503 and int(answer.headers.get("retry-after", 0)) < 1:
                self.without_advice.append(answer.raw)
        return int(answer.status)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(90)
        assert self._faults == []
        assert not any(thread.is_alive() for thread in self._threads)


@contextlib.contextmanager
def others(path: Path, met: Callable[[], bool]) -> Iterator[None]:
    """A backup tool that copies page by page, and a program that has the write lock until somebody has ``met`` it, and
    then takes it for a moment again and again."""
    done, held = threading.Event(), threading.Event()

    def backup() -> None:
        while not done.is_set():
            with (
                contextlib.closing(sqlite3.connect(path)) as source,
                contextlib.closing(sqlite3.connect(":memory:")) as target,
            ):
                source.backup(target, pages=5, progress=lambda *_: None, sleep=0.01)

    def lock() -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=5)) as holder:
            while not done.wait(0.2):
                with contextlib.suppress(sqlite3.OperationalError):
                    holder.execute("BEGIN IMMEDIATE")
                    held.set()
                    done.wait(0.3)
                    while not met() and not done.wait(0.05):
                        pass
                    holder.execute("ROLLBACK")

    crowd = Crowd()
    crowd.start(backup)
    crowd.start(lock)
    try:
        assert held.wait(60)
        yield
    finally:
        done.set()
        crowd.join()


@pytest.mark.case("FC-071")
def test_a_crowd_on_the_default_database_meets_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrent writers failed at once with "database is locked", requests ended in 500, and clients made it worse."""
    monkeypatch.setattr(engines, "BUSY_TIMEOUT_MS", 100)  # so that the wait does run out
    world, crowd = World(tmp_path / "state"), Crowd()
    nodes = [Speaker(f"gpu-{number:03d}") for number in range(NODES)]
    with world.serving(heartbeat_interval_s=60) as plane:
        for node in nodes:
            node.beat(plane)
        done = threading.Event()

        def beat(node: Speaker) -> None:
            assert node.agent is not None
            while not done.wait(1):
                crowd.count("beat", node.agent.beat(task_health=[], live_task_ids=[]))

        def until_taken(what: str, call: Callable[[], Any], good: tuple[int, ...]) -> None:
            last = time.monotonic() + 60
            while (status := crowd.count(what, call())) not in good:
                assert status == 503 and time.monotonic() < last, f"{what}: {status}"
                time.sleep(random.uniform(0.05, 0.2))

        def one_task(node: Speaker, name: str) -> None:
            body = {"id": name, "name": name, "image": "registry/one:1", "node_id": node.node_id}
            until_taken("create", lambda: plane.operator("POST", "/api/v1/tasks", body), (201, 200))
            wait_until(lambda: task(plane, name).get("status") == "scheduled", f"{name} is placed", 60)
            until_taken("claim", lambda: node.put(plane, name, 1, "scheduled", "running"), (200,))
            until_taken("report", lambda: node.put(plane, name, 1, "running", "completed", exit_code=0), (200,))

        def work(node: Speaker) -> None:
            for turn in range(ROUNDS):
                one_task(node, f"{node.node_id}-{turn}")

        plane.operator("GET", "/api/v1/nodes")  # makes the operator's token
        beats = Crowd()

        def met() -> bool:
            return any(crowd.statuses[(what, 503)] for what in ("create", "claim", "report"))

        with others(world.database, met):
            for node in nodes[WORKERS:]:
                beats.start(lambda node=node: beat(node))
            for node in nodes[:WORKERS]:
                crowd.start(lambda node=node: work(node))
            try:
                crowd.join()
            finally:
                done.set()
                beats.join()
        assert crowd.without_advice == []
        assert {status for what, status in crowd.statuses if what == "beat"} == {200}, crowd.statuses
        assert not [key for key in crowd.statuses if key[1] >= 500 and key[1] != 503], crowd.statuses
        assert met(), crowd.statuses
        listed = plane.operator("GET", "/api/v1/tasks?limit=1000").body["tasks"]
        assert Counter(one["status"] for one in listed) == {"completed": WORKERS * ROUNDS}


@pytest.mark.case("FC-071")
def test_an_end_that_finds_the_database_locked_is_stored_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal report that met a lock was dropped. It is refused with advice, and taken when it comes again."""
    monkeypatch.setattr(engines, "BUSY_TIMEOUT_MS", 200)
    world, node = World(tmp_path / "state"), Speaker("gpu-a")
    with world.serving() as plane:
        node.beat(plane)
        submit(plane, "ends")
        is_status(plane, "ends", "scheduled")
        assert node.put(plane, "ends", 1, "scheduled", "running").status == 200
        with contextlib.closing(sqlite3.connect(world.database, isolation_level=None)) as holder:
            holder.execute("BEGIN EXCLUSIVE")
            refused = node.put(plane, "ends", 1, "running", "failed", exit_code=3, reason="exited")
            assert (refused.status, refused.code) == (503, "database_busy")
            assert int(refused.headers["retry-after"]) >= 1
            assert node.beat(plane)["registered"], "a known node is answered from memory"
            holder.execute("ROLLBACK")
        assert node.put(plane, "ends", 1, "running", "failed", exit_code=3, reason="exited").status == 200
        assert task(plane, "ends")["exit_code"] == 3


@pytest.mark.case("FC-071")
def test_a_full_disk_loses_no_end_and_no_node(tmp_path: Path) -> None:
    """The disk is a kind of lock that no wait ends: it is said, nodes are answered, and what waited is stored after."""
    node = Speaker("gpu-a")
    with small_disk(tmp_path / "state", "3m") as disk:
        world = World(disk)
        with world.serving() as plane:
            node.beat(plane)
            submit(plane, "ends")
            is_status(plane, "ends", "scheduled")
            assert node.put(plane, "ends", 1, "scheduled", "running").status == 200
            filler = fill(disk)
            refused = _refused(plane, node)
            assert "disk" in refused.body["detail"] and refused.code == "database_busy"
            assert node.beat(plane)["registered"]
            filler.unlink()
            report = {"exit_code": 0, "log_tail": "x" * 60_000}
            wait_until(
                lambda: node.put(plane, "ends", 1, "running", "completed", **report).status in (200, 409), "it is taken"
            )
            assert task(plane, "ends")["status"] == "completed"


def _refused(plane: Plane, node: Speaker) -> Any:
    """The refusal of a report that finds no room; what is there of the write-ahead log may hold a few changes yet."""
    report = {"exit_code": 0, "log_tail": "x" * 60_000}
    for number in range(40):
        made = plane.operator(
            "POST", "/api/v1/tasks", {"id": f"more-{number}", "name": "m", "image": "i:1", "labels": {"a": "b" * 60}}
        )
        if made.status == 503:
            return node.put(plane, "ends", 1, "running", "completed", **report)
    raise AssertionError("the disk never was full")
