"""What an operator does to containers on the node itself, and containers that are in the way or will not go."""

from __future__ import annotations

import pytest

from tests.integration.engine_trouble.trouble import Trouble
from tests.integration.waiting import until
from tests.lab import task_image


def test_ends_by_hand_are_told_as_they_were(trouble: Trouble) -> None:
    """Stopped, killed, removed, paused and restarted on the node: each end is what really happened, once."""
    docker = trouble.node.docker
    tasks = {how: trouble.start("forever") for how in ("stop", "kill", "rm", "pause")}
    child = trouble.submit("sh", "-c", "/bin/task eat 64; exit 0", memory_mib=16)
    box = {how: trouble.box(task_id)["Id"] for how, task_id in tasks.items()}
    docker("pause", box["pause"])
    docker("stop", box["stop"])
    docker("kill", box["kill"])
    docker("rm", "-f", box["rm"])
    assert trouble.end(tasks["stop"]) == ("signalled", 143)
    assert trouble.end(tasks["kill"]) == ("signalled", 137)
    assert trouble.end(tasks["rm"])[0] == "lost_container"
    assert trouble.end(child) == ("exited", 0), "one of its children was killed for memory, and it went on"
    shown = trouble.task(child)
    assert (shown["error"], [one["code"] for one in shown["warnings"]]) == (None, ["oom_inside"])
    paused = trouble.task(tasks["pause"])
    assert (paused["status"], paused["attempt"]) == ("running", 1)
    trouble.fleet.order(tasks["pause"], "stop")
    assert trouble.end(tasks["pause"])[0] == "stopped_by_operator"
    for task_id in tasks.values():
        assert trouble.task(task_id)["attempt"] == 1


@pytest.mark.case("FC-050")
def test_a_kill_comes_after_the_grace_and_is_no_failure(trouble: Trouble) -> None:
    """Programs killed in the middle of their work left memory held on their cards: they are asked first, and only
    what does not run is removed."""
    deaf = {
        trouble.start("ignore-term", "forever"): ("stopped_by_operator", 137),
        trouble.start("ignore-term", "forever", timeout_s=2): ("timeout", 124),
    }
    box = {task_id: trouble.box(task_id)["Id"] for task_id in deaf}
    trouble.fleet.order(next(iter(deaf)), "stop")
    for task_id, end in deaf.items():
        assert trouble.end(task_id) == end
        trouble.gone(task_id)
        until(
            "the engine told of its removal", lambda task_id=task_id: deaths(trouble, box[task_id])[-1:] == ["destroy"]
        )
        assert deaths(trouble, box[task_id]) == ["kill 15", "kill 9", "die", "destroy"]


def deaths(trouble: Trouble, box: str) -> list[str]:
    """What the engine told of signals to one container, its end and its removal."""
    words = ["--since", "10m", "--until", "0s", "--filter", f"container={box}", "--format"]
    form = '{{.Action}} {{index .Actor.Attributes "signal"}}'
    told = [line.strip() for line in trouble.node.docker("events", *words, form).stdout.splitlines()]
    return [line for line in told if line.split()[0] in ("kill", "die", "destroy")]


def test_a_container_that_is_restarted_by_hand(trouble: Trouble) -> None:
    """The same container, a second start: there are never two of them, and its end is told once."""
    task_id = trouble.start("on-term", "9", "forever")
    box = trouble.box(task_id)["Id"]
    trouble.node.docker("restart", box)
    until("it goes on, or its end is told", lambda: trouble.state(task_id).get("Running")
          or trouble.task(task_id)["status"] == "failed")  # fmt: skip
    if trouble.task(task_id)["status"] == "running":
        assert trouble.boxes(task_id) == [box]
        trouble.node.docker("stop", box)
    assert trouble.end(task_id) == ("exited", 9)
    trouble.gone(task_id)


def test_a_restart_policy_that_was_set_by_hand_is_taken_back(trouble: Trouble) -> None:
    """The engine would have started the program again after each end, beside the task's next attempt."""
    task_id = trouble.start("forever")
    box = trouble.box(task_id)["Id"]
    trouble.node.docker("update", "--restart=always", box)
    until("it is taken back", lambda: trouble.box(task_id)["HostConfig"]["RestartPolicy"]["Name"] == "no")
    trouble.node.docker("exec", box, "kill", "-TERM", "1")
    assert trouble.end(task_id) == ("signalled", 143)
    trouble.gone(task_id)


def test_a_prune_takes_no_ends_and_doubles_nothing(trouble: Trouble) -> None:
    """It removes what does not run: a task that sleeps is gone with it, and that is said; what runs goes on."""
    living, sleeping = trouble.start("forever"), trouble.start("forever")
    before = trouble.box(living)["Id"]
    trouble.fleet.order(sleeping, "sleep")
    trouble.fleet.wait(sleeping, "sleeping")
    trouble.node.docker("system", "prune", "--force")
    assert trouble.end(sleeping)[0] == "lost_container"
    assert trouble.runs(living) == before


def test_names_that_others_have(trouble: Trouble) -> None:
    """A foreign container had the task's name: it is left alone, and the other name is taken; when that is taken as
    well, the node hands the task back."""
    docker = trouble.node.docker
    ids = [f"name-{number}" for number in range(2)]
    for task_id in ids:
        docker("create", "--name", f"task-{task_id}", task_image.NAME, "forever")
    try:
        body = {"name": "x", "image": task_image.NAME, "command": ["forever"], "stop_grace_s": 1}
        trouble.fleet.plane.request("POST", "/api/v1/tasks", {**body, "id": ids[0]})
        trouble.runs(ids[0])
        uid = trouble.task(ids[0])["uid"].replace("-", "")[:8]
        assert trouble.box(ids[0])["Name"] == f"/task-{ids[0]}-{uid}"
        # The second one's other name is known only once it has a uid.
        trouble.agent("stop")
        trouble.fleet.plane.request("POST", "/api/v1/tasks", {**body, "id": ids[1]})
        uid = trouble.task(ids[1])["uid"].replace("-", "")[:8]
        docker("create", "--name", f"task-{ids[1]}-{uid}", task_image.NAME, "forever")
        ids.append(f"{ids[1]}-{uid}")
        trouble.agent("start")
        assert trouble.end(ids[1])[0] == "name_conflict"
        assert trouble.task(ids[1])["status"] in ("pending", "scheduled")
        for name in ids:
            assert docker("inspect", "-f", "{{.State.Status}}", f"task-{name}").stdout.strip() == "created"
    finally:
        docker("rm", "-f", *(f"task-{name}" for name in ids), check=False)


@pytest.mark.case("FC-010")
def test_a_container_that_will_not_go(trouble: Trouble) -> None:
    """Its removal failed for weeks, while the list said "removal in progress". Its end is told at once, the leftover is
    shown, and other tasks come and go meanwhile."""
    task_id = trouble.start("forever")
    file = f"/var/lib/docker/containers/{trouble.box(task_id)['Id']}/stays"
    trouble.node.sh(f"touch {file}; chattr +i {file}")
    try:
        trouble.fleet.order(task_id, "stop")
        assert trouble.end(task_id)[0] == "stopped_by_operator"

        def stuck() -> bool:
            found = [entry for entry in trouble.status()["tasks"] if entry["task_id"] == task_id]
            return bool(found) and found[0]["phase"] == "stuck" and "not permitted" in found[0]["detail"]

        until("it is shown as stuck", stuck)
        assert trouble.state(task_id)["Status"] in ("removing", "dead")
        assert trouble.end(trouble.submit("exit", "4")) == ("exited", 4)
        assert trouble.log().count(f"task {task_id}: its container cannot be removed") == 1
    finally:
        trouble.node.sh(f"chattr -i {file}")
    trouble.gone(task_id)
    until("nothing is held", lambda: not any(entry["task_id"] == task_id for entry in trouble.status()["tasks"]))
