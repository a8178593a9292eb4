"""An engine that is stopped, killed, hangs or is replaced, with containers on it: what ended them, and what did not."""

from __future__ import annotations

import time

import pytest

from runtime.agent.tasks.engine_ends import SLACK_S
from tests.integration.engine_trouble.trouble import Trouble
from tests.integration.waiting import until

RESTARTED = "engine_restarted"


def test_a_restart_ends_what_runs_and_not_what_had_ended(trouble: Trouble) -> None:
    """A program that had ended by itself up to a minute before Docker was restarted ran again; one that Docker ended
    was called the program's own end. The agent is away, so nothing but the records of others tells."""
    ended = [trouble.start("on-term", str(code), "forever") for code in (0, 4)]
    killed = {
        trouble.start("forever"): 143,
        trouble.start("on-term", "0", "forever"): 0,
        trouble.start("on-term", "7", "forever"): 7,
    }
    trouble.agent("stop")
    for task_id in ended:
        inside = trouble.node.docker("exec", trouble.box(task_id)["Id"], "kill", "-TERM", "-1", check=False)
        assert inside.returncode in (0, 137, 143), inside.stderr
        until("it has ended", lambda task_id=task_id: not trouble.state(task_id)["Running"])
    in_doubt = time.monotonic() + 2 * SLACK_S  # an end just before Docker's own could be either's
    until("what comes now can be told from the ends", lambda: time.monotonic() > in_doubt)
    trouble.node.restart_engine()
    trouble.agent("start")
    assert [trouble.end(task_id) for task_id in ended] == [("exited", 0), ("exited", 4)]
    for task_id, code in killed.items():
        assert trouble.end(task_id) == (RESTARTED, code)


def test_an_engine_that_is_killed(trouble: Trouble) -> None:
    """It finds what it left running, and ends it at its next start: by the next run's hand, not the program's."""
    tasks = [trouble.start("forever"), trouble.start("on-term", "0", "forever")]
    trouble.node.run(["systemctl", "kill", "--signal=KILL", "--kill-who=main", "docker"])
    assert [trouble.end(task_id)[0] for task_id in tasks] == [RESTARTED, RESTARTED]


@pytest.mark.case("FC-005")
@pytest.mark.case("FC-017")
@pytest.mark.case("FC-018")
def test_containers_that_outlive_their_engine(trouble: Trouble) -> None:
    """Docker was away for half a minute, and restarted with live-restore: its containers were called dead, their
    watcher's error an end, and copies ran beside them. The agent's unit stopped with Docker's and stayed down."""
    trouble.engine_settings(**{"live-restore": True})
    trouble.node.run(["systemctl", "reload", "docker"])
    living = [trouble.start("forever") for _ in range(2)]
    ending = trouble.start("sleep", "6", "exit", "3")
    before, agent = [trouble.box(task_id)["Id"] for task_id in living], trouble.agent_pid()
    trouble.node.stop_engine()
    trouble.node.run(["systemctl", "mask", "--runtime", "docker.service", "docker.socket"])
    assert trouble.engine_is(False)["error"]
    late = trouble.submit("exit", "0")
    trouble.beats(8)  # longer than a reconciliation takes to come round, and than the one program
    for task_id in living:
        task = trouble.task(task_id)
        assert (task["status"], task["attempt"], task["phase"]) == ("running", 1, "running")
    assert trouble.task(late)["status"] in ("pending", "scheduled")
    trouble.node.run(["systemctl", "unmask", "--runtime", "docker.service", "docker.socket"])
    trouble.node.start_engine()
    trouble.node.restart_engine()
    trouble.engine_is(True)
    assert trouble.end(ending) == ("exited", 3)
    assert trouble.end(late) == ("exited", 0)
    assert [trouble.runs(task_id) for task_id in living] == before
    assert trouble.agent_pid() == agent


@pytest.mark.case("FC-005")
def test_an_engine_that_hangs(trouble: Trouble) -> None:
    """It takes connections and says nothing. Every call has an end, so the agent goes on saying that it lives."""
    living, ending = trouble.start("forever"), trouble.start("sleep", "4", "exit", "5")
    before, agent = trouble.box(living)["Id"], trouble.agent_pid()
    trouble.node.freeze_engine()
    assert "does not answer" in trouble.engine_is(False)["error"]
    trouble.beats(5)
    assert trouble.status()["registered"]
    assert [trouble.task(task_id)["status"] for task_id in (living, ending)] == ["running", "running"]
    trouble.node.thaw_engine()
    assert trouble.end(ending) == ("exited", 5)
    assert (trouble.runs(living), trouble.agent_pid()) == (before, agent)


def test_containerd_is_killed(trouble: Trouble) -> None:
    """Its containers run on. (An end while it is away may never be heard of by this dockerd, so none falls there.)"""
    living, ending = trouble.start("forever"), trouble.start("on-term", "6", "forever")
    before = trouble.box(living)["Id"]
    trouble.node.run(["systemctl", "kill", "--signal=KILL", "--kill-who=main", "containerd"])
    trouble.runs(trouble.submit("forever"))  # waits until it is back
    trouble.node.docker("kill", "--signal=TERM", trouble.box(ending)["Id"])
    assert trouble.end(ending) == ("exited", 6)
    assert trouble.runs(living) == before


def test_another_engine_behind_the_same_socket(trouble: Trouble) -> None:
    """It knows none of the containers. Judged at its first word, they were all called lost."""
    task_id = trouble.start("forever")
    box = trouble.box(task_id)["Id"]
    trouble.engine_settings(**{"data-root": "/var/lib/docker/another"})
    trouble.node.restart_engine()
    try:
        assert trouble.end(task_id)[0] == "lost_container"
        assert "the list is in doubt" in trouble.log(), "it was believed at once"
    finally:
        trouble.make_whole(remove=box)
