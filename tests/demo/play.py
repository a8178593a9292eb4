"""The demo from start to end, and its removal."""

from __future__ import annotations

import json
import time
from typing import Any, Callable

from rich.console import Console

from tests.demo import fleet, report
from tests.demo.story import PRIVATE_IMAGE, SCENES, Scene
from tests.lab import Lab, LabError, places
from tests.lab.control_plane import ControlPlane
from tests.lab.process import Progress, wait_for

CARDS = 2
WIDTH = 150  # of the table where no terminal says another
DONE = ("completed", "failed", "cancelled", "stopped")
Said = Callable[[str], None]


def up(nodes: int, console: Console) -> int:
    """Everything, then the table; 0 when every task ended as it must and the engines agree."""
    progress = Progress()
    lab = Lab.up(nodes=nodes, cards=CARDS)
    builds = fleet.agent_builds(progress)
    plane = ControlPlane()
    with progress.step(f"control plane on {plane.url}"):
        plane.stop()  # one of an earlier run may be of older sources; agents and tasks outlive its restart
        plane.start()
    fleet.publish_builds(plane, builds)
    fresh = [node for node in lab.nodes if node.run(["test", "-e", "/opt/heterofleet"], check=False).returncode]
    if fresh:
        code = fleet.refused_with_wrong_key(plane, fresh[0])
        progress.say(f"{fresh[0].name}: a wrong key is refused with exit code {code}, and nothing was touched")
    fleet.install_everywhere(plane, lab, progress)
    with progress.step("all nodes online"):
        fleet.wait_online(plane, len(lab.nodes), CARDS)
    former = fleet.end_former_tasks(plane)
    if former:
        progress.say(f"{former} task(s) of an earlier run stopped")
    with progress.step(f"private image {PRIVATE_IMAGE}"):
        lab.registry.push_files(PRIVATE_IMAGE, {"etc/private": "only with a login\n"})
    began = time.time() - 1
    tasks = run_story(plane, lab, progress.say)
    ends, running = report.engine_ends(lab, began), report.engine_running(lab)
    rows = [(scene, task, report.differences(scene, task, ends, running)) for scene, task in tasks]
    report.print_table(console, rows)
    _say_how_to_go_on(console, plane)
    return 1 if any(wrong for _, _, wrong in rows) else 0


def run_story(plane: ControlPlane, lab: Lab, say: Said) -> list[tuple[Scene, dict[str, Any]]]:
    """Submit every scene by the command line, follow them to their ends; each with its task as read last."""
    submitted = {submit(plane, lab, scene): scene for scene in SCENES}
    shown: dict[str, tuple[Any, ...]] = {}
    asked: set[str] = set()
    latest: dict[str, dict[str, Any]] = {}

    def probe() -> object:
        waiting = []
        for task_id, scene in submitted.items():
            task = plane.get(f"/api/v1/tasks/{task_id}")
            latest[task_id] = task
            state = (task["status"], task["phase"], task["ready"], task["node_id"])
            if shown.get(task_id) != state:
                shown[task_id] = state
                phase = f", {task['phase']}" if task["phase"] and task["status"] == "running" else ""
                say(f"{scene.name}: {task['status']}{phase} on {task['node_id'] or 'no node yet'}")
            if scene.stop_when_running and task["phase"] == "running" and task_id not in asked:
                asked.add(task_id)
                plane.cli("tasks", "stop", task_id)
            if task["status"] not in DONE and not (scene.stays and task["ready"]):
                waiting.append(scene.name)
        return not waiting or f"still going: {', '.join(waiting)}"

    wait_for("every task has come to its end", probe, 90, 0.25, hint=f"Read {plane.log}.")
    return [(scene, latest[task_id]) for task_id, scene in submitted.items()]


def submit(plane: ControlPlane, lab: Lab, scene: Scene) -> str:
    """`heterofleet tasks run ...`; the new task's id."""
    words = ["-o", "json", "tasks", "run", "--image", scene.image, "--name", scene.name, *scene.options]
    if scene.private:
        login = {"server": places.REGISTRY, "username": lab.registry.user, "password": lab.registry.password}
        file = plane.folder / "registry-auth.json"
        places.write_atomically(file, json.dumps(login).encode(), 0o600)
        words += ["--registry-auth-file", str(file)]
    made = plane.cli(*words, "--", *scene.command)
    return str(json.loads(made.stdout)["id"])


def down(purge: bool) -> int:
    """Take everything away but the cache, or that too; an engine that the demo started is stopped."""
    ControlPlane().remove()
    lab = Lab()
    if purge:
        lab.purge()
    else:
        lab.down()
    return 0


def _say_how_to_go_on(console: Console, plane: ControlPlane) -> None:
    console.print(
        f"\nLook further:\n"
        f"  export HETEROFLEET_SERVER_URL={plane.url} HETEROFLEET_TOKEN=$(cat {plane.token_file})\n"
        f"  .venv/bin/heterofleet nodes list\n"
        f"  .venv/bin/heterofleet tasks list\n"
        f"  .venv/bin/heterofleet events\n"
        f"  docker exec -it hf-node-1 heterofleet-agent status     (or: journalctl -u heterofleet-agent)\n"
        f"  make demo-down    takes it all away; the cache in {places.cache()} stays (make demo-purge)",
        highlight=False,
        soft_wrap=True,
    )


def main(action: str, nodes: int = 3) -> int:
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    try:
        return up(nodes, console) if action == "up" else down(purge=action == "purge")
    except LabError as error:
        Console(stderr=True).print(f"[red]demo:[/red] {error}", highlight=False)
        return 1
