"""How real containers end, and what the control plane is told of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.agent_tasks.agent_bench import Agent, Plane
from tests.integration.waiting import until
from tests.lab import engine


def end_of(plane: Plane, task_id: str) -> tuple[str, int | None, str]:
    task = plane.ended(task_id)
    return task["status"], task["exit_code"], task["reason"]


def test_success_and_its_output(plane: Plane, agent: Agent) -> None:
    task_id = agent.submit("print", "to out", "err", "to err", "exit", "0", env={"GREETING": "hello"})
    assert end_of(plane, task_id) == ("completed", 0, "exited")
    assert sorted(plane.task(task_id)["log_tail"].splitlines()) == ["to err", "to out"]
    agent.gone(task_id)


@pytest.mark.case("FC-021")
def test_only_a_program_that_ran_owns_its_exit_code(plane: Plane, agent: Agent) -> None:
    """125, 126 and 127 were taken for Docker's faults, or a missing command for the program's own end."""
    own = {code: agent.submit("exit", str(code)) for code in (3, 125, 126, 127)}
    missing = agent.submit(entrypoint=["/no/such/program"])
    folder = agent.submit(entrypoint=["/etc"])
    shell = agent.submit(entrypoint=["/bin/sh", "-c", "no-such-program"])
    for code, task_id in own.items():
        assert end_of(plane, task_id) == ("failed", code, "exited")
    assert end_of(plane, shell) == ("failed", 127, "exited")
    assert end_of(plane, missing) == ("failed", None, "start_failed")
    assert "/no/such/program" in plane.task(missing)["error"]
    assert end_of(plane, folder) == ("failed", None, "start_failed")


def test_a_name_that_is_taken_is_no_obstacle(plane: Plane, agent: Agent) -> None:
    task_id = "taken-by-another"
    other = engine.docker("create", "--name", f"task-{task_id}", "hf-lab/task:1", "exit", "9")
    try:
        plane.submit(agent.node_id, "exit", "4", id=task_id, name="x")
        assert end_of(plane, task_id) == ("failed", 4, "exited")
        assert engine.docker("inspect", "-f", "{{.State.Status}}", other) == "created"
    finally:
        engine.docker("rm", "-f", other)


@pytest.mark.case("FC-075")
def test_timeout_ends_the_container_itself(plane: Plane, agent: Agent) -> None:
    """A time limit hit the client and not the container, which ran on."""
    task_id = agent.submit("ignore-term", "forever", timeout_s=1, stop_grace_s=1)
    began = time.monotonic()
    agent.running(task_id)
    assert end_of(plane, task_id) == ("failed", 124, "timeout")
    assert time.monotonic() - began < 20
    agent.gone(task_id)


@pytest.mark.case("FC-022")
def test_a_polite_end_is_no_success(plane: Plane, agent: Agent) -> None:
    """A program that ends with 0 when told to stop looked completed."""
    late = agent.submit("on-term", "0", "forever", timeout_s=1)
    stopped = agent.submit("on-term", "0", "forever")
    plane.phase(stopped, "running")
    plane.stop_task(stopped)
    assert end_of(plane, stopped) == ("stopped", 0, "stopped_by_operator")
    assert end_of(plane, late) == ("failed", 124, "timeout")


@pytest.mark.case("FC-050")
def test_stop_is_a_signal_with_grace_before_a_kill(plane: Plane, agent: Agent) -> None:
    """Tasks were killed outright, in the middle of work on the card."""
    polite = agent.submit("on-term", "0", "forever")
    rude = agent.submit("ignore-term", "forever", stop_grace_s=1)
    assert agent.running(polite)["HostConfig"]["Init"] is True
    agent.running(rude)
    began = time.time()
    for task_id in (polite, rude):
        plane.phase(task_id, "running")
        plane.stop_task(task_id)
    assert end_of(plane, rude) == ("stopped", 137, "stopped_by_operator")
    assert end_of(plane, polite)[1] == 0
    assert "got TERM" in plane.task(polite)["log_tail"]
    calls = engine.docker("events", "--since", str(int(began)), "--until", str(int(time.time()) + 1), "--filter",
                          "event=kill", "--filter", f"label=heterofleet.task={rude}", "--format",
                          "{{.Actor.Attributes.signal}}")  # fmt: skip
    assert calls.split() == ["15", "9"]


def test_killed_from_outside(plane: Plane, agent: Agent) -> None:
    task_id = agent.submit("forever")
    engine.docker("kill", agent.running(task_id)["Id"])
    assert end_of(plane, task_id) == ("failed", 137, "signalled")


def test_memory_limit(plane: Plane, agent: Agent) -> None:
    """The outer engine does not always see the kernel's kill; what it says decides, and both are an end by 137."""
    task_id = agent.submit("eat", "64", memory_mib=16)
    task = plane.ended(task_id)
    assert (task["status"], task["exit_code"]) == ("failed", 137)
    assert task["reason"] in ("oom_killed", "signalled")


def test_stop_before_the_start(plane: Plane, agent: Agent) -> None:
    agent.proxy.rule = lambda method, path, body: 503 if method == "PUT" else None
    try:
        task_id = agent.submit("forever")
        until(
            "the claim was sent", lambda: any(b.get("from_status") == "scheduled" for b in agent.proxy.puts("running"))
        )
        plane.stop_task(task_id)
    finally:
        agent.proxy.rule = lambda method, path, body: None
    assert plane.ended(task_id)["status"] in ("stopped", "cancelled")
    assert agent.container(task_id) is None


@pytest.mark.case("FC-034")
def test_bytes_that_are_no_text(plane: Plane, agent: Agent) -> None:
    """One odd byte in the output ended the worker, and the task's end was never told."""
    task_id = agent.submit(entrypoint=["/bin/sh", "-c", r"printf 'a\377\376\224b\000c\033[0m\n'"])
    assert end_of(plane, task_id) == ("completed", 0, "exited")
    tail = plane.task(task_id)["log_tail"]
    assert tail.startswith("a") and "c\x1b[0m" in tail and "\0" not in tail


@pytest.mark.case("FC-033")
def test_a_line_without_end(plane: Plane, agent: Agent) -> None:
    """A container that printed one endless line filled the reader's memory."""
    before = resident_kib(agent.pid)
    task_id = agent.submit("bytes", str(80 * 1024 * 1024), "print", "last words", "exit", "3")
    assert end_of(plane, task_id) == ("failed", 3, "exited")
    tail = plane.task(task_id)["log_tail"]
    assert tail.endswith("last words\n") and 60_000 < len(tail) <= 65536
    assert resident_kib(agent.pid) - before < 16 * 1024


def resident_kib(pid: int) -> int:
    with Path(f"/proc/{pid}/status").open() as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def test_health_probe_makes_it_ready(plane: Plane, agent: Agent) -> None:
    probe = {"type": "http", "port": 8080, "interval_s": 0.2}
    task_id = agent.submit("serve", "8080", "2", "forever", health=probe)
    until("it is loading", lambda: plane.task(task_id)["phase"] == "loading")
    until("it is ready", lambda: plane.task(task_id)["ready"] is True)
    assert plane.task(task_id)["phase"] == "running"
    plane.stop_task(task_id)
    assert plane.ended(task_id)["status"] == "stopped"


def test_start_limit(plane: Plane, agent: Agent) -> None:
    probe = {"type": "tcp", "port": 8080, "interval_s": 0.2}
    task_id = agent.submit("forever", health=probe, start_timeout_s=2)
    assert plane.ended(task_id)["reason"] == "start_timeout"


@pytest.mark.case("FC-007")
def test_task_1_is_not_task_10(plane: Plane, agent: Agent) -> None:
    """Docker's name filter is a pattern: stopping task 1 touched task 10 as well."""
    suffix = agent.node_id
    ids = [f"{suffix}-1", f"{suffix}-10", f"other-{suffix}-1"]
    for task_id in ids:
        plane.submit(agent.node_id, "forever", id=task_id)
    for task_id in ids:
        plane.phase(task_id, "running")
    plane.stop_task(ids[0])
    assert plane.ended(ids[0])["status"] == "stopped"
    agent.gone(ids[0])
    for task_id in ids[1:]:
        assert agent.running(task_id)
        plane.stop_task(task_id)
    for task_id in ids[1:]:
        plane.ended(task_id)


@pytest.mark.case("FC-011")
def test_anonymous_volumes_go_and_binds_stay(plane: Plane, agent: Agent) -> None:
    """The unnamed volumes of removed containers filled the disks."""
    data = agent.folder / "data"
    data.mkdir(exist_ok=True)
    run_image = "hf-lab/volume:1"
    engine.docker("build", "-q", "-t", run_image, "-", input=b"FROM hf-lab/task:1\nVOLUME /anonymous\n")
    volumes = set(engine.docker("volume", "ls", "-q").split())
    task_id = agent.submit("write", "/out/x", "kept", "sleep", "1", image=run_image,
                           volumes=[{"host": str(data), "container": "/out", "read_only": False}])  # fmt: skip
    mounts = agent.running(task_id)["Mounts"]
    named = {mount["Name"] for mount in mounts if mount["Type"] == "volume"}
    assert named and not named & volumes
    assert end_of(plane, task_id) == ("completed", 0, "exited")
    agent.gone(task_id)
    assert not named & set(engine.docker("volume", "ls", "-q").split())
    assert (data / "x").read_text() == "kept\n"


def test_a_missing_volume_ends_it_before_the_start(plane: Plane, agent: Agent) -> None:
    missing = agent.folder / "data" / "typo"
    task_id = agent.submit("exit", "0", volumes=[{"host": str(missing), "container": "/x"}])
    assert end_of(plane, task_id) == ("failed", None, "volume_rejected")
    assert plane.task(task_id)["error"] == f"mount source does not exist: {missing}"
    assert not missing.exists()
