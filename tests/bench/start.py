"""From submit to a started container through the doorbell, against `docker run -d` of the same image."""

from __future__ import annotations

import time

from runtime.protocol.times import from_wire
from tests.bench.measure import Figure, Spread
from tests.demo import fleet
from tests.lab import Lab
from tests.lab.control_plane import ControlPlane
from tests.lab.process import Progress, wait_for

ROUNDS = 15


def started_at(node_client: object, container: str) -> float:
    state = node_client.api.inspect_container(container)["State"]  # type: ignore[attr-defined]
    return from_wire(state["StartedAt"]).timestamp()


def measure() -> list[Figure]:
    lab = Lab.up(nodes=1)
    plane = ControlPlane()
    builds = fleet.agent_builds(Progress())
    plane.start()
    fleet.publish_builds(plane, builds)
    fleet.install(plane, lab.node(1))
    fleet.wait_online(plane, 1)
    client = lab.node(1).docker_client()
    ours, reference = [], []
    for number in range(ROUNDS + 2):
        began = time.time()
        made = client.api.create_container(lab.task_image, ["forever"], detach=True)
        client.api.start(made["Id"])
        bare = started_at(client, made["Id"]) - began
        client.api.remove_container(made["Id"], force=True)

        task_id = f"bench-start-{number}-{int(began)}"
        body = {
            "id": task_id,
            "name": "bench",
            "image": lab.task_image,
            "command": ["forever"],
            "stop_grace_s": 0,
            "node_id": lab.node(1).name,
        }
        began = time.time()
        status, answer = plane.request("POST", "/api/v1/tasks", body)
        if status != 201:
            raise RuntimeError(f"{status} {answer}")

        def running(task_id: str = task_id) -> object:
            found = client.api.containers(filters={"label": f"heterofleet.task={task_id}"})
            return bool(found) or "not listed yet"

        wait_for(f"{task_id} runs", running, 20, 0.02)
        through = started_at(client, f"task-{task_id}") - began
        plane.request("DELETE", f"/api/v1/tasks/{task_id}?force=false")

        def gone(task_id: str = task_id) -> object:
            return not client.api.containers(all=True, filters={"label": f"heterofleet.task={task_id}"}) or "there"

        wait_for(f"{task_id} is gone", gone, 60, 0.05)
        if number >= 2:  # the first two warm everything up
            ours.append(through * 1e3)
            reference.append(bare * 1e3)
    above = Spread.of([one - other for one, other in zip(ours, reference)])
    return [
        Figure(
            "submit to started through the doorbell, above docker create + start",
            f"{above.text('ms', 0)}; {Spread.of(ours).text('ms', 0)} against {Spread.of(reference).text('ms', 0)}",
            "at most 150 ms",
            above.median <= 150,
        )
    ]
