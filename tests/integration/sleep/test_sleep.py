"""Sleep and wake on a real node: the same container, the same cards, and nothing that is lost in between."""

from __future__ import annotations

from typing import Any

from runtime.protocol.times import from_wire
from tests.faults.relay import Call
from tests.integration.sleep.sleeper import Sleepers
from tests.integration.waiting import until

CARD = {"gpus": {"count": 1}}


def test_the_same_container_runs_again_on_the_same_card(sleepers: Sleepers) -> None:
    """Its card is another task's meanwhile; the waking one waits for that very card and says for whom."""
    own = sleepers.start("print", "here I am", "env", "NVIDIA_VISIBLE_DEVICES", "serve", "8000", "1", "forever",
                         health={"type": "http", "port": 8000, "interval_s": 0.5}, **CARD)  # fmt: skip
    until("it is ready", lambda: sleepers.task(own)["ready"])
    before, card = sleepers.box(own), sleepers.task(own)["gpus_assigned"][0]["uuid"]
    assert "is sleeping on" in sleepers.cli("sleep", own, "--wait-timeout", "30s")
    until("the node says that it sleeps", lambda: sleepers.task(own)["phase"] == "sleeping")
    task = sleepers.task(own)
    assert (task["status"], task["desired"], task["ready"]) == ("sleeping", "sleep", None)
    assert sleepers.box(own)["Id"] == before["Id"] and not sleepers.state(own)["Running"]
    assert sleepers.held() == [], "a sleeper's card is free"

    other = sleepers.start("forever", gpus={"count": 1, "uuids": [card]})
    sleepers.order(own, "wake")
    assert sleepers.task(own)["desired"] == "run"
    why = until("why says what it waits for", lambda: _said(sleepers, own, f"held by task {other}"))
    assert why["fits"] is False and why["smallest_change"]["code"] == "free"
    assert sleepers.task(own)["status"] == "sleeping" and not sleepers.state(own)["Running"]

    sleepers.order(other, "stop")
    sleepers.fleet.wait(own, "running")
    until("its probe began anew and it is ready again", lambda: sleepers.task(own)["ready"])
    after, task = sleepers.box(own), sleepers.task(own)
    assert after["Id"] == before["Id"] and after["State"]["StartedAt"] > before["State"]["StartedAt"]
    assert (task["attempt"], task["starts"], len(task["attempts"])) == (1, 1, 1), "a wake is no new attempt"
    assert task["gpus_assigned"][0]["uuid"] == card
    assert sleepers.output(own).count("here I am") == 2
    assert set(sleepers.output(own).split("NVIDIA_VISIBLE_DEVICES=")[1:]) == {f"{card}\nhere I am\n", f"{card}\n"}
    codes = [event["code"] for event in
             sleepers.fleet.plane.get(f"/api/v1/events?task={own}&kind=task_state")["events"]]  # fmt: skip
    assert codes[-3:] == ["running", "sleeping", "running"]
    sleepers.order(own, "stop")
    assert sleepers.fleet.wait(own)["log_tail"].count("here I am") == 2, "its log goes on"


def _said(sleepers: Sleepers, task_id: str, words: str) -> dict[str, Any] | None:
    why = sleepers.why(task_id)
    return why if words in why["summary"] else None


def test_a_program_that_ends_just_before_the_signal_has_its_true_end(sleepers: Sleepers) -> None:
    """The signal is on its way when the program is over by itself: it is not asleep, it is done."""
    task_id = sleepers.start("sleep", "3", "exit", "5")

    def wait_for_the_end(call: Call) -> None:
        if call.kind == "POST /containers/{id}/kill":
            until("the program is over by itself", lambda: not sleepers.state(task_id)["Running"])

    sleepers.place.engine.rule = wait_for_the_end
    sleepers.order(task_id, "sleep")
    task = sleepers.fleet.wait(task_id)
    assert (task["status"], task["reason"], task["exit_code"]) == ("failed", "exited", 5)


def test_stop_and_delete_of_a_sleeper_and_one_whose_container_is_gone(sleepers: Sleepers) -> None:
    stopped, deleted, forced, gone = (sleepers.start("forever") for _ in range(4))
    for task_id in (stopped, deleted, forced, gone):
        sleepers.order(task_id, "sleep")
    for task_id in (stopped, deleted, forced, gone):
        sleepers.fleet.wait(task_id, "sleeping")
    sleepers.excused.add("lost_container")
    sleepers.deleted |= {deleted, forced}
    request = sleepers.fleet.plane.request
    sleepers.order(stopped, "stop")
    assert request("DELETE", f"/api/v1/tasks/{deleted}")[0] == 202
    assert request("DELETE", f"/api/v1/tasks/{forced}?force=true")[0] == 204
    sleepers.node.docker("rm", sleepers.box(gone)["Id"])
    task = sleepers.fleet.wait(stopped)
    assert (task["status"], task["reason"]) == ("stopped", "stopped_by_operator")
    task = sleepers.fleet.wait(gone)
    assert (task["status"], task["reason"]) == ("failed", "lost_container")
    until("the deleted one is gone", lambda: request("GET", f"/api/v1/tasks/{deleted}")[0] == 404)
    for task_id in (stopped, deleted, forced):
        until(f"the container of {task_id} is removed", lambda task_id=task_id: not sleepers.box(task_id))


LIMIT_S = 10


def test_a_sleeper_outlives_its_engine_its_machine_and_its_time_limit(sleepers: Sleepers) -> None:
    """Neither restart takes its container for one that ended; its volumes are admitted anew before it runs, and what it
    slept does not count."""
    count = "echo run >> /own; wc -l < /own; exec sleep 3600"
    task_id = sleepers.asleep("/bin/sh", "-c", count, gpus={"count": 1}, timeout_s=LIMIT_S)
    before = sleepers.box(task_id)
    sleepers.node.restart_engine()
    sleepers.node.power_cut()
    sleepers.node.power_on()
    until("the node is back", lambda: _heard_again(sleepers, task_id), 60)
    until("more time than it has is over", lambda: _since_start(sleepers, task_id) > LIMIT_S)
    assert sleepers.task(task_id)["status"] == "sleeping"
    sleepers.order(task_id, "wake")
    sleepers.fleet.wait(task_id, "running")
    until("its own files are there", lambda: sleepers.output(task_id).split() == ["1", "2"])
    assert sleepers.box(task_id)["Id"] == before["Id"] and sleepers.state(task_id)["Running"]


def _since_start(sleepers: Sleepers, task_id: str) -> float:
    now = sleepers.node.sh("date -u +%Y-%m-%dT%H:%M:%SZ")
    return (from_wire(now) - from_wire(sleepers.state(task_id)["StartedAt"])).total_seconds()


def _heard_again(sleepers: Sleepers, task_id: str) -> bool:
    """By an agent of this run of the machine, which knows of the task."""
    node = sleepers.fleet.plane.get(f"/api/v1/nodes/{sleepers.place.name}")
    docker = (node["docker"] or {}).get("available")
    return bool(docker and node["state"] == "online" and sleepers.task(task_id)["phase"] == "sleeping")


def test_a_source_that_was_swapped_meanwhile_is_refused(sleepers: Sleepers) -> None:
    """Volumes are admitted anew before every wake: where one leads elsewhere now, its program does not run."""
    sleepers.node.sh("mkdir -p /srv/sleep-yard/data && echo mine > /srv/sleep-yard/data/file")
    volume = {"host": "/srv/sleep-yard/data", "container": "/x"}
    task_id = sleepers.plain("swapped", "cat", "/x/file", "forever", volumes=[volume])
    sleepers.order(task_id, "sleep")
    sleepers.fleet.wait(task_id, "sleeping")
    sleepers.node.sh("cd /srv/sleep-yard && mv data was && ln -s /etc data")
    sleepers.order(task_id, "wake")
    task = sleepers.fleet.wait(task_id)
    sleepers.node.sh("rm -rf /srv/sleep-yard")
    assert (task["status"], task["reason"]) == ("failed", "volume_rejected")


def test_one_that_somebody_else_started_is_put_to_sleep_again(sleepers: Sleepers) -> None:
    """Its card may be another task's by now. One with volumes cannot even be started: their places are let go."""
    task_id = sleepers.plain("by-hand", "forever", **CARD)
    sleepers.order(task_id, "sleep")
    sleepers.fleet.wait(task_id, "sleeping")
    sleepers.node.docker("start", sleepers.box(task_id)["Id"])
    until("it sleeps again", lambda: not sleepers.state(task_id)["Running"])
    until("the node says so", lambda: sleepers.task(task_id)["phase"] == "sleeping")
    assert sleepers.task(task_id)["status"] == "sleeping"
    sleepers.order(task_id, "stop")
    until("its container is removed", lambda: not sleepers.box(task_id))
