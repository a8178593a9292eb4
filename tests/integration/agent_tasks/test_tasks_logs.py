"""Live logs from real containers to a reader at the control plane."""

from __future__ import annotations

from tests.integration.agent_tasks.agent_bench import Agent, Plane
from tests.integration.logs.reading import Reader
from tests.integration.waiting import until


def test_a_follower_sees_lines_as_they_come(plane: Plane, agent: Agent) -> None:
    task_id = agent.submit("print", "before", "lines", "1000", "0.3")
    plane.phase(task_id, "running")
    reader = Reader(plane, task_id)
    until("line 12 comes", lambda: reader.has("line 12\n"))
    assert reader.text.startswith("before\nline 1\nline 2\n")
    assert reader.text.split("\n")[1:13] == [f"line {number}" for number in range(1, 13)]
    assert reader.dropped == 0
    plane.stop_task(task_id)
    plane.ended(task_id)


def test_a_backlog_is_cut_and_said(plane: Plane, agent: Agent) -> None:
    task_id = agent.submit("bytes", str(3 * 1024 * 1024), "print", "here", "forever")
    plane.phase(task_id, "running")
    until("all is printed", lambda: "here" in agent.logs(task_id)[-10:])
    reader = Reader(plane, task_id)
    until("the end comes", lambda: reader.has("here\n"))
    assert reader.at == 3 * 1024 * 1024 + 5
    assert reader.dropped > 2 * 1024 * 1024
    plane.stop_task(task_id)
    plane.ended(task_id)
