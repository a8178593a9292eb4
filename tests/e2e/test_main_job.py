"""The main job on real parts: what the demo shows, held by assertions."""

from __future__ import annotations

import time

from tests.demo import play, report
from tests.demo.story import PRIVATE_IMAGE, SCENES


def test_every_scene_ends_as_it_must_and_the_engines_agree(fleet) -> None:
    fleet.lab.registry.push_files(PRIVATE_IMAGE, {"etc/private": "only with a login\n"})
    began = time.time() - 1
    tasks = play.run_story(fleet.plane, fleet.lab, print)
    ends, running = report.engine_ends(fleet.lab, began), report.engine_running(fleet.lab)
    wrong = {scene.name: report.differences(scene, task, ends, running) for scene, task in tasks}
    assert wrong == {scene.name: [] for scene in SCENES}
    for scene, task in tasks:
        if scene.stays:
            fleet.plane.cli("tasks", "stop", task["id"])
            assert fleet.wait(task["id"], "ended")["reason"] == "stopped_by_operator"


def test_the_private_image_is_refused_without_a_login(fleet) -> None:
    name = "e2e-no-login"
    image = fleet.lab.registry.push_files(f"{fleet.lab.registry.address}/lab/secret:1", {"etc/secret": "2"})
    fleet.submit(name, "exit", "0", image=image)
    task = fleet.wait(name, "ended")
    assert (task["status"], task["reason"]) == ("failed", "registry_auth_failed")
    assert "auth" in task["error"] or "denied" in task["error"]


def test_ended_tasks_leave_no_container_behind(fleet) -> None:
    fleet.submit("e2e-gone", "exit", "0")
    task = fleet.wait("e2e-gone", "ended")
    node = fleet.lab.node(task["node_id"])
    from tests.lab.process import wait_for

    wait_for(
        "the container is removed after delivery",
        lambda: not node.docker("ps", "-aq", "--filter", "label=heterofleet.task=e2e-gone").stdout.strip() or "there",
        20,
    )
    assert node.docker("volume", "ls", "-q", "--filter", "dangling=true").stdout.strip() == ""


def test_a_restarted_agent_goes_on_with_what_runs(fleet) -> None:
    fleet.submit("e2e-restart", "sleep", "12", "exit", "5")
    task = fleet.wait("e2e-restart", "running")
    node = fleet.node_of("e2e-restart")
    fleet.wait("e2e-restart", "running")
    before = node.docker("inspect", "-f", "{{.Id}} {{.State.StartedAt}}", f"task-{task['id']}").stdout
    node.run(["systemctl", "kill", "-s", "KILL", "heterofleet-agent"])
    node.run(["systemctl", "restart", "heterofleet-agent"])
    after = node.docker("inspect", "-f", "{{.Id}} {{.State.StartedAt}}", f"task-{task['id']}").stdout
    assert after == before
    ended = fleet.wait("e2e-restart", "ended")
    assert (ended["status"], ended["exit_code"], ended["reason"]) == ("failed", 5, "exited")
