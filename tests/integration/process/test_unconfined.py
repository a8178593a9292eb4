"""Without systemd: processes under supervisors of their own, on this very machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agent_tasks.agent_bench import Agent, Plane
from tests.integration.waiting import until

RECORDS = Path("/run/heterofleet/processes")
COUNTS = "echo begun; while [ ! -e {gate} ]; do sleep 0.05; done; echo done; exit 5"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    plane = Plane(tmp_path_factory.mktemp("plane") / "server")
    yield plane
    plane.close()


@pytest.fixture(scope="module")
def agent(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("agent")
    made = Agent(plane, folder / "a", process_driver=True, process_unconfined=True, log_max_mib=1)
    until("it runs processes", lambda: "process" in (plane.call("GET", f"/nodes/{made.node_id}")[1]["drivers"] or ()))
    yield made
    made.close()
    clear(made.node_id)


def clear(node_id: str) -> None:
    """End what a test that failed has left, and its records."""
    for path in RECORDS.glob("*.json"):
        if f'"{node_id}"' not in path.read_text():
            continue
        marks = path.with_suffix(".pid")
        for line in marks.read_text().splitlines() if marks.exists() else ():
            pid, started = line.split()
            with contextlib.suppress(OSError):  # the number may be another program's by now
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19] == started:
                    os.kill(int(pid), signal.SIGKILL)
        for file in RECORDS.glob(f"{path.stem}.*"):
            file.unlink(missing_ok=True)


@pytest.fixture
def submit(agent: Agent) -> Callable[..., str]:
    def submit(script: str, **members: Any) -> str:
        task_id = f"u-{secrets.token_hex(4)}"
        body = {"id": task_id, "name": task_id, "driver": "process", "command": ["/bin/sh", "-c", script],
                "node_id": agent.node_id, "stop_grace_s": 1}  # fmt: skip
        status, answer = agent.plane.call("POST", "/tasks", {**body, **members})
        assert status == 201, answer
        return task_id

    return submit


@pytest.fixture
def gate() -> Iterator[Path]:
    """A file whose coming ends the waiting programs, where any user can see it."""
    with tempfile.TemporaryDirectory(prefix="hf-gate-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "open"


def record_of(task_id: str) -> str:
    return next(path.stem for path in RECORDS.glob("*.json") if f'"{task_id}"' in path.read_text())


def program_of(task_id: str) -> int:
    """Its number, once it runs."""

    def look() -> int:
        lines = (RECORDS / f"{record_of(task_id)}.pid").read_text().splitlines()
        return int(lines[1].split()[0])

    return int(until(f"{task_id} runs", look))


def phase(agent: Agent, task_id: str) -> int:
    agent.plane.phase(task_id, "running")
    return program_of(task_id)


@pytest.mark.parametrize(
    ("script", "members", "wanted"),
    [
        ("echo good", {}, ("completed", "exited", 0)),
        ("exec no-such-program", {}, ("failed", "exited", 127)),
        ("kill -9 $$", {}, ("failed", "signalled", 137)),
        ("sleep 60", {"timeout_s": 1}, ("failed", "timeout", 124)),
        ("id -u", {"user": "root"}, ("failed", "profile_rejected", None)),
        ("a=x; while :; do a=$a$a; done", {"memory_mib": 32}, ("failed", "oom_killed", 137)),
    ],
)
def test_ends(
    agent: Agent, submit: Callable[..., str], script: str, members: dict[str, Any], wanted: tuple[Any, ...]
) -> None:
    end = agent.plane.ended(submit(script, **members))
    assert (end["status"], end["reason"], end["exit_code"]) == wanted, end


def test_the_node_says_that_nothing_keeps_them(agent: Agent) -> None:
    node = agent.plane.call("GET", f"/nodes/{agent.node_id}")[1]
    assert (node["process"]["available"], node["process"]["confined"]) == (True, False)
    assert [warning["code"] for warning in node["warnings"]] == ["processes_unconfined"]


def test_the_agent_is_killed_and_comes_back(agent: Agent, submit: Callable[..., str], gate: Path) -> None:
    going, over = submit(COUNTS.format(gate=gate)), submit("sleep 60")
    pid, other = phase(agent, going), phase(agent, over)
    agent.kill()
    os.kill(other, signal.SIGKILL)
    agent.start()
    end = agent.plane.ended(over)
    assert (end["reason"], end["exit_code"], end["attempt"]) == ("signalled", 137, 1)
    os.kill(pid, 0)
    assert agent.plane.task(going)["status"] == "running"
    gate.touch()
    end = agent.plane.ended(going)
    assert (end["exit_code"], end["log_tail"]) == (5, "begun\ndone\n")


def test_a_number_that_is_anothers_now_is_not_taken_for_it(
    agent: Agent, submit: Callable[..., str], gate: Path
) -> None:
    """Its supervisor was killed with it, and its number given to a program that is none of ours."""
    task_id = submit("sleep 60")
    pid = phase(agent, task_id)
    agent.kill()
    record = record_of(task_id)
    marks = RECORDS / f"{record}.pid"
    supervisor = int(marks.read_text().split()[0])
    os.kill(supervisor, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    started = marks.read_text().split()[3]
    marks.write_text(f"{supervisor} 1\n{os.getpid()} {started}\n")
    agent.start()
    end = agent.plane.ended(task_id)
    assert (end["reason"], end["exit_code"]) == ("end_unknown", None)


def test_all_that_came_from_it_ends_with_it(agent: Agent, submit: Callable[..., str], gate: Path) -> None:
    """Also what went into a session of its own, and ignores what it is told."""
    leaves = f"setsid sh -c 'trap \"\" TERM; echo $$ >{gate.parent}/left; exec sleep 60' & wait"
    gate.parent.chmod(0o777)
    task_id = submit(leaves)
    left = int(until("it has left a child", lambda: (gate.parent / "left").exists() and
               (gate.parent / "left").read_text().strip()))  # fmt: skip
    agent.plane.stop_task(task_id)
    assert agent.plane.ended(task_id)["status"] == "stopped"
    until("the child is gone", lambda: not Path(f"/proc/{left}").exists() or
          Path(f"/proc/{left}/stat").read_text().split()[2] == "Z")  # fmt: skip


def test_volumes_come_through_the_fence(agent: Agent, submit: Callable[..., str]) -> None:
    data = agent.folder / "data" / "in"
    data.mkdir(parents=True)
    (data / "marker").write_text("here\n")
    target = f"/mnt/hf-{secrets.token_hex(4)}"
    volume = {"host": str(data), "container": target, "read_only": True}
    end = agent.plane.ended(submit(f"cat {target}/marker; touch {target}/new", volumes=[volume]))
    assert (end["status"], end["log_tail"].splitlines()[0]) == ("failed", "here")
    assert "ead-only" in end["log_tail"]
    for host, container in (("/etc", target), (str(data), "/etc/heterofleet/x")):
        end = agent.plane.ended(submit("true", volumes=[{"host": host, "container": container}]))
        assert end["reason"] == "volume_rejected"
    Path(target).rmdir()
