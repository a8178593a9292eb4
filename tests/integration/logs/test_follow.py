"""Output from a real container to readers: as it comes, whole, whatever happens in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agent_tasks.agent_bench import Agent, Plane
from tests.integration.logs.reading import Reader, held, numbers_in_order
from tests.integration.waiting import until


def posts(agent: Agent) -> int:
    return sum(1 for method, path, _ in agent.proxy.seen if method == "POST" and path.endswith("/logs"))


def test_nothing_is_sent_while_nobody_reads(plane: Plane, agent: Agent) -> None:
    before = posts(agent)
    task_id = agent.submit("lines", "20", "0.1")
    plane.ended(task_id)
    assert posts(agent) == before + 1, "only the last words go, with the end"
    found = held(plane, task_id)
    assert (found["from"], found["dropped"]) == (0, 0)
    assert numbers_in_order(found["data"]) == list(range(1, 21))
    assert found["to"] == len(found["data"])


def test_a_line_is_seen_soon_after_it_was_printed(plane: Plane, agent: Agent) -> None:
    """The figure goes into the test's output; the assertion is generous."""
    task_id = agent.submit("/bin/sh", "-c", "while :; do echo at $(cut -d' ' -f1 /proc/uptime); sleep 0.2; done")
    plane.phase(task_id, "running")
    reader = Reader(plane, task_id)
    until("the first line comes", lambda: reader.has("at "))
    delays = []
    while len(delays) < 10:
        if reader.read():
            printed = float(reader.text.rstrip("\n").rpartition("\n")[2].split()[1])
            delays.append(float(Path("/proc/uptime").read_text().split()[0]) - printed)
    print(f"newest line seen after {sorted(delays)[5]:.2f} s (median of 10), at most {max(delays):.2f} s")
    assert min(delays) < 5
    plane.stop_task(task_id)
    plane.ended(task_id)


def test_two_streams_and_two_readers_and_one_that_goes_away(plane: Plane, agent: Agent) -> None:
    task_id = agent.submit("print", "out", "err", "wrong", "lines", "1000", "0.1")
    plane.phase(task_id, "running")
    first, second = Reader(plane, task_id), Reader(plane, task_id)
    until("both read", lambda: [first.has("line 9\n"), second.has("line 9\n")] == [True, True])
    until("one goes on", lambda: first.has("line 30\n"))
    assert {"out", "wrong"} <= set(first.text.splitlines()[:3])
    assert numbers_in_order(first.text)[:30] == list(range(1, 31))
    assert first.text.startswith(second.text)
    assert first.dropped == 0
    plane.stop_task(task_id)
    plane.ended(task_id)


@pytest.mark.case("FC-034")
def test_bytes_that_are_no_text_hurt_nobody(plane: Plane, agent: Agent) -> None:
    """A program printed bytes that are not UTF-8; a decode error killed the worker, and its end was never reported."""
    task_id = agent.submit(
        "/bin/sh", "-c", r"printf '\377\376\224 \355\240\200 a\0b \033[31mred\n'; sleep 2; printf 'z'"
    )
    plane.phase(task_id, "running")
    reader = Reader(plane, task_id)
    until("it comes", lambda: reader.has("red\n"))
    task = plane.ended(task_id)
    assert (task["status"], task["exit_code"]) == ("completed", 0)
    for text in (reader.text, task["log_tail"], held(plane, task_id)["data"]):
        assert "ab \x1b[31mred\n" in text
        assert "\ufffd" in text
        assert "\0" not in text
    assert held(plane, task_id)["data"].endswith("z")


@pytest.mark.case("FC-033")
def test_one_line_without_end(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    """A program printed gigabytes as one line, and its reader held all of it."""
    agent = make_agent(log_max_mib=4)
    size = 24 * 1024 * 1024
    task_id = agent.submit("bytes", str(size), "sleep", "3", "bytes", "70000", "exit", "3")
    plane.phase(task_id, "running")
    before = pss_kib(agent.pid)
    reader = Reader(plane, task_id)
    until("its end comes", lambda: reader.read() and reader.at > 0)
    grown = []
    while plane.task(task_id)["status"] == "running":
        reader.read()
        grown.append(pss_kib(agent.pid) - before)
    task = plane.ended(task_id)
    assert (task["status"], task["exit_code"]) == ("failed", 3)
    assert task["log_tail"] == "x" * 65536
    assert max(grown) < 24 * 1024, "KiB"
    found = held(plane, task_id)
    assert len(found["data"].encode()) <= (1 << 20) + 200
    assert "output is gone here" in found["data"], "rotation took what nobody had read"


def pss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def test_an_agent_that_dies_in_the_middle_loses_nothing_and_says_nothing_twice(
    plane: Plane, make_agent: Callable[..., Agent]
) -> None:
    agent = make_agent()
    task_id = agent.submit("lines", "2000", "0.01")
    plane.phase(task_id, "running")
    reader = Reader(plane, task_id)
    until("it is under way", lambda: reader.has("line 40\n"))
    agent.kill()
    agent.start()
    until("it goes on", lambda: reader.has("line 300\n"))
    assert numbers_in_order(reader.text)[:300] == list(range(1, 301))
    assert reader.dropped == 0
    plane.stop_task(task_id)
    plane.ended(task_id)
    reader.read()
    assert reader.text == held(plane, task_id)["data"], "with the last words"


def test_what_rotation_took_before_anybody_read_is_said_and_a_restart_repeats_nothing(
    plane: Plane, make_agent: Callable[..., Agent]
) -> None:
    agent = make_agent(log_max_mib=1)
    task_id = agent.submit(
        "/bin/sh", "-c", "seq 1 60000 | sed 's/^/early /'; for n in $(seq 1 2000); do echo line $n; sleep 0.01; done"
    )
    until("the early lines are printed", lambda: "line 1\n" in agent.logs(task_id))
    reader = Reader(plane, task_id)
    until("it comes", lambda: reader.has("line 20\n"))
    assert reader.text.startswith("[output is gone here")
    assert reader.text.splitlines()[2].startswith("early ")
    agent.kill()
    agent.start()
    until("it goes on", lambda: reader.has("line 250\n"))
    assert numbers_in_order(reader.text)[:250] == list(range(1, 251))
    assert reader.text.count("gone here") == 1
    plane.stop_task(task_id)
    plane.ended(task_id)


def test_a_server_that_is_away_gets_the_rest_afterwards(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    agent = make_agent()
    task_id = agent.submit("lines", "3000", "0.01")
    plane.phase(task_id, "running")
    reader = Reader(plane, task_id)
    until("it is under way", lambda: reader.has("line 50\n"))
    refused: list[Any] = []

    def rule(method: str, path: str, body: Any) -> str | int | None:
        if method == "POST" and path.endswith("/logs"):
            refused.append(body)
            return (503, "drop", None)[len(refused) % 3] if len(refused) < 6 else None
        return None

    agent.proxy.rule = rule
    until("some were lost", lambda: len(refused) >= 6)
    until("it goes on", lambda: reader.has("line 300\n"))
    assert numbers_in_order(reader.text)[:300] == list(range(1, 301))
    assert reader.dropped == 0
    plane.stop_task(task_id)
    plane.ended(task_id)


def test_the_end_is_complete_when_it_is_told(plane: Plane, agent: Agent) -> None:
    """Whoever sees the task ended can read all of its output, however fast it ended after its last line."""
    for _ in range(2):
        task_id = agent.submit("lines", "100", "0.01", "print", "the last words", "exit", "4")
        reader = Reader(plane, task_id)
        deadline = time.monotonic() + 60
        while plane.task(task_id)["status"] not in ("failed", "completed"):
            reader.read()
            assert time.monotonic() < deadline
        reader.read()
        assert reader.text.endswith("line 100\nthe last words\n")
        assert numbers_in_order(reader.text) == list(range(1, 101))
        assert reader.dropped == 0


def test_each_attempt_keeps_its_own_output(plane: Plane, agent: Agent) -> None:
    task_id = agent.submit("print", "first words", "forever", max_attempts=2, on_node_lost="reschedule")
    plane.phase(task_id, "running")
    assert plane.call("POST", f"/tasks/{task_id}/reschedule")[0] == 202
    until("the second attempt is made", lambda: plane.task(task_id)["attempt"] == 2)
    plane.phase(task_id, "running")
    second = Reader(plane, task_id)
    until("the second speaks", lambda: second.has("first words\n"))
    assert held(plane, task_id, "?attempt=2")["data"] == "first words\n"
    plane.stop_task(task_id)
    plane.ended(task_id)
