"""Many claims of one task at the same moment: one wins, and the database knows which."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from tests.integration.postgres import Postgres
from tests.lab.control_plane import ControlPlane
from tests.lab.process import wait_for
from tests.lab.simulated_node import SimulatedNode

ROUNDS = int(os.environ.get("HF_CLAIM_ROUNDS", "50"))
CLAIMS = 200


def race(planes: Sequence[ControlPlane]) -> None:
    """``ROUNDS`` tasks, each claimed ``CLAIMS`` times in parallel over all server processes."""
    nodes = [SimulatedNode(plane.url, planes[0].key, "race-1") for plane in planes]
    for node in nodes[1:]:
        node.instance_id, node.boot_id = nodes[0].instance_id, nodes[0].boot_id
    assert nodes[0].beat()[0] == 200
    with ThreadPoolExecutor(CLAIMS) as pool:
        for number in range(ROUNDS):
            task_id = f"race-{number}"
            body = {"id": task_id, "name": "race", "image": "app:1", "node_id": "race-1"}
            assert planes[0].request("POST", "/api/v1/tasks", body)[0] == 201
            attempt = scheduled_attempt(nodes[0], task_id)
            start = Barrier(CLAIMS)

            def claim(index: int, task_id: str = task_id, attempt: int = attempt, start: Barrier = start):
                start.wait(30)
                return nodes[index % len(nodes)].claim(task_id, attempt, uuid.uuid4().hex)

            answers = list(pool.map(claim, range(CLAIMS)))
            statuses = Counter(status for _, (status, _) in answers)
            assert statuses == {200: 1, 409: CLAIMS - 1}, f"round {number}: {statuses}"
            (winner,) = [token for token, (status, _) in answers if status == 200]
            for _, (status, refusal) in answers:
                if status == 409:
                    assert refusal["code"] == "state_conflict"
                    assert refusal["claim_token_matches"] is False
            # The stored token is the winner's: its owner alone is told "yours", on every server process.
            for node in nodes:
                _, (status, mine) = node.claim(task_id, attempt, winner)
                assert (status, mine["claim_token_matches"]) == (409, True)
            done = nodes[-1].put(task_id, attempt, winner, "running", "completed", exit_code=0, reason="exited")
            assert done[0] == 200, done


def scheduled_attempt(node: SimulatedNode, task_id: str) -> int:
    found: dict[str, int] = {}

    def probe() -> object:
        node.beat()
        found.update({task["id"]: task["attempt"] for task in node.scheduled()})
        return task_id in found or "not scheduled"

    wait_for(f"{task_id} is scheduled", probe, 20, 0.02)
    return found[task_id]


def test_two_hundred_parallel_claims_have_one_winner_on_sqlite(tmp_path, plane_factory) -> None:
    race([plane_factory("race-sqlite", 3411)])


@pytest.mark.timeout(900)
def test_two_hundred_parallel_claims_have_one_winner_on_two_processes_over_postgresql(
    postgres: Postgres, plane_factory
) -> None:
    with postgres.database() as url:
        one = plane_factory("race-pg-1", 3412, database_url=url)
        two = plane_factory("race-pg-2", 3413, database_url=url, api_key_file=str(one.key_file))
        race([one, two])
