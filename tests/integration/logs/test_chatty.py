"""A task that prints as fast as it can: memory, requests and disk stay bounded, and the reader is told what is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.protocol.tasks import LOG_KEEP_BYTES
from tests.integration.agent_tasks.agent_bench import Agent, Plane
from tests.integration.logs.reading import Reader, held
from tests.integration.logs.test_follow import pss_kib
from tests.integration.waiting import until

RATE = 1024 * 1024
FAST = "yes 0123456789012345678901234567890123456789012345678901234567890123456789012345678"
ONE_LINE = "tr '\\0' x < /dev/zero"


@pytest.mark.case("FC-033")
@pytest.mark.parametrize("program", [FAST, ONE_LINE], ids=["lines", "one line"])
def test_what_a_chatty_task_costs(plane: Plane, make_agent: Callable[..., Agent], program: str) -> None:
    agent = make_agent(log_max_mib=8)
    task_id = agent.submit("/bin/sh", "-c", program)
    plane.phase(task_id, "running")
    server = plane._process.pid
    before = pss_kib(agent.pid), pss_kib(server)
    reader = Reader(plane, task_id)
    until("it comes", reader.read)
    began, most = time.monotonic(), (0, 0)
    first = len(agent.proxy.seen)

    def read_on() -> bool:
        nonlocal most
        reader.read()
        most = max(most[0], pss_kib(agent.pid) - before[0]), max(most[1], pss_kib(server) - before[1])
        return reader.text.count("gone here") >= 3 and time.monotonic() - began > 6

    until("it was read for a while, with gaps", read_on, 90)
    spent = time.monotonic() - began
    chunks = [body for method, path, body in agent.proxy.seen[first:] if method == "POST" and path.endswith("/logs")]
    sent = sum(body["to"] - body["from"] for body in chunks)
    print(f"{sent / spent / RATE:.2f} MiB/s sent; agent +{most[0]} KiB, server +{most[1]} KiB")
    assert sent <= RATE * (spent + 2)
    assert max(len(body["data"]) for body in chunks) <= 256 * 1024
    assert most[0] < 24 * 1024, "KiB: the agent holds one buffer, whatever is printed"
    assert most[1] < 96 * 1024, "KiB"
    container = agent.container(task_id)
    assert container is not None
    files = list(Path(container["LogPath"]).parent.glob("*-json.log*"))
    assert sum(file.stat().st_size for file in files) <= 8 * 1024 * 1024 + 64 * 1024
    assert len(held(plane, task_id)["data"].encode()) <= LOG_KEEP_BYTES + 10 * 100
    plane.stop_task(task_id)
    end = plane.ended(task_id)
    assert end["status"] == "stopped"
    assert len(end["log_tail"]) == 64 * 1024
