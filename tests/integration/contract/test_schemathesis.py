"""schemathesis against a server process: no answer is a 500, and none is outside the document.

``SCHEMATHESIS_EXAMPLES`` (cases an operation and phase, default 4) and ``SCHEMATHESIS_SEED`` make it longer or
another one; the seed of each run is printed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.contract.live import BIN, Live, call, control_plane, run
from tests.lab.simulated_node import SimulatedNode

EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES", "4")
SEED = os.environ.get("SCHEMATHESIS_SEED", "20261129")
TASKS = "/api/v1/tasks"
LIMIT_S = 60 + 60 * int(EXAMPLES)
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "use_after_free",
)


@pytest.fixture
def live() -> Iterator[Live]:
    # A long interval: the nodes of the seed stay online without a beat during a run.
    with control_plane("contract-schema", heartbeat_interval_s=60) as plane:
        yield Live(plane)


def seed(live: Live, name: str) -> tuple[SimulatedNode, dict[str, Any]]:
    """A node with work in every status, instructions, and the names for the requests."""
    node = live.node(name, cards=2)
    ids = [f"{name}-{status}" for status in ("pending", "scheduled", "running", "tired", "sleeping", "completed")]
    pending, scheduled, running, tired, sleeping, completed = ids
    spare = [f"{name}-spare-{number}" for number in range(3)]
    for task in (pending, *spare):
        live.create(task, gpus={"count": 16})
    tokens = {}
    for task in (scheduled, running, tired, sleeping, completed):
        live.create(task, node_id=name, volumes=[{"host": "/data", "container": "/data"}])
        attempt = wait_scheduled(node, task)
        if task != scheduled:
            tokens[task], (answered, body) = node.claim(task, attempt)
            assert answered == 200, body
    assert live.operator("POST", f"{TASKS}/{sleeping}/sleep").status == 202
    put = node.put(sleeping, 1, tokens[sleeping], "running", "sleeping")
    assert put[0] == 200, put
    put = node.put(completed, 1, tokens[completed], "running", "completed", exit_code=0)
    assert put[0] == 200, put
    # Its cards are nobody's: it is cordoned, so no task of a run takes one before a slice request does.
    cut = live.node(f"{name}-cut", cards=32)
    assert live.operator("POST", f"/api/v1/nodes/{cut.node_id}/cordon").status == 200
    requests = {}
    for channel, body in {
        "image": {"op": "pull", "image": "app:1"},
        "file": {"op": "stat", "path": "/data"},
        "slice": {
            "vendor": "nvidia-mig",
            "op": "create",
            "gpu_uuid": f"GPU-{name}-0",
            "profiles": [{"name": "1g.10gb", "count": 1}],
        },
    }.items():
        made = live.operator("POST", f"/api/v1/{channel}-requests", {"node_id": name, **body})
        assert made.status == 201, made.raw
        requests[f"{channel}-requests"] = [made.body["id"]]
    assert live.operator("GET", "/api/v1/events").body["events"], "no events"
    # Member -> the values to choose from.
    mine = {"node_id": [name], "instance_id": [node.instance_id], "claim_token": [tokens[running]], "attempt": [1]}
    edges = {"from_status": ["scheduled", "running"], "status": ["running", "completed", "failed", "pending"]}
    steps = {"from_status": ["pending", "running"], "status": ["running", "succeeded", "failed"]}
    plain = {
        "image": ["app:1"],
        "driver": ["docker"],
        "volumes": [[]],
        "labels": [{}],
        "node_selector": [{}],
        "env": [{}],
    }
    return node, {
        "ids": {"tasks": ids, "nodes": [name], "gpus": [f"GPU-{name}-0"], **requests},
        # These change what they name: each has its own, so that the others find theirs as it was.
        "paths": {
            f"DELETE {TASKS}/{{id}}": spare,
            f"POST {TASKS}/{{id}}/sleep": [tired],
            f"POST {TASKS}/{{id}}/wake": [sleeping],
            f"POST {TASKS}/{{id}}/stop": [running],
            f"POST {TASKS}/{{id}}/reschedule": [scheduled],
        },
        "members": mine,
        "bodies": {
            TASKS: plain,
            f"{TASKS}/{{id}}": {**mine, **edges},
            "/api/v1/agent/heartbeat": {
                **mine,
                "run": [1 << 40],
                "boot_id": [node.boot_id],
                "fingerprint": [f"fp-{name}"],
            },
            "/api/v1/slice-requests": {
                "node_id": [cut.node_id],
                "vendor": ["nvidia-mig"],
                "op": ["create"],
                "gpu_uuid": [f"GPU-{cut.node_id}-{number}" for number in range(cut.cards)],
                "profiles": [[{"name": "1g.10gb", "count": 2}]],
                "instances": [[]],
            },
            "/api/v1/image-requests": {"node_id": [name], "image": ["app:1"]},
            "/api/v1/file-requests": {"node_id": [name], "op": ["fetch"], "path": ["/data/x"], "sha256": ["0" * 64]},
            **{f"/api/v1/agent/{channel}/{{id}}": {**mine, **steps} for channel in requests},
        },
    }


def wait_scheduled(node: SimulatedNode, task_id: str) -> int:
    from tests.lab.process import wait_for

    found: list[int] = []

    def probe() -> object:
        found.extend(task["attempt"] for task in node.scheduled() if task["id"] == task_id)
        return bool(found)

    wait_for(f"{task_id} is scheduled", probe, 40)
    return found[0]


@dataclass(frozen=True)
class Caller:
    """``paths``: which operations; ``reached``: of which security every operation must have been answered with 2xx."""

    paths: str
    phases: str
    fewest: int
    reached: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()


CALLERS = {
    "admin": Caller(
        "^/(?!api/v1/agent/)",
        "examples,coverage,fuzzing,stateful",
        1000,
        frozenset({"operatorToken"}),
        # A node that is online is neither deleted nor released.
        frozenset({"DELETE /api/v1/nodes/{id}", "POST /api/v1/nodes/{id}/release"}),
    ),
    "agent": Caller(
        "^/api/v1/(agent|tasks)",
        "examples,coverage,fuzzing,stateful",
        1000,
        frozenset({"systemKey"}),
    ),
    "nobody": Caller(".", "fuzzing", 100),
}


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("who", CALLERS)
def test_no_answer_is_outside_the_document(live: Live, who: str, tmp_path: Path) -> None:
    caller = CALLERS[who]
    node, seeds = seed(live, f"seed-{who}")
    headers = {
        "admin": [f"Authorization: Bearer {live.token()}"],
        "agent": [f"X-API-Key: {node.key}", f"X-Node-Id: {node.node_id}", f"X-Instance-Id: {node.instance_id}"],
        "nobody": [],
    }[who]
    answers = tmp_path / "answers.json"
    done = run(
        *(str(BIN / "schemathesis"), "run", f"{live.url}/openapi.json", "--no-color", "--checks", ",".join(CHECKS)),
        *("--phases", caller.phases, "--max-examples", EXAMPLES, "--seed", SEED, "--workers", "1", "--no-shrink"),
        *("--continue-on-failure", "--generation-database", "none", "--suppress-health-check", "all"),
        *("--warnings", "off", "--request-timeout", "20", "--include-path-regex", caller.paths),
        *(word for header in headers for word in ("-H", header)),
        env={
            "CONTRACT_SEEDS": json.dumps(seeds),
            "CONTRACT_ANSWERS": str(answers),
            "SCHEMATHESIS_HOOKS": "tests.integration.contract.seeded_hooks",
            "PYTHONPATH": str(Path(__file__).parents[3]),
        },
        timeout=LIMIT_S,
        cwd=tmp_path,
    )
    tail = done.stdout[done.stdout.find("= SUMMARY =") :]
    print(f"{who}: seed {SEED}\n{tail}")
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-2000:]
    assert cases(done.stdout) >= caller.fewest, tail
    counts = json.loads(answers.read_text())
    print(json.dumps(counts))
    # The run is worth something only where requests got past the door.
    assert missed(live, caller, counts) == set()
    # The server said nothing of a failure of its own, whatever was sent.
    assert re.findall(r"(?m)^.*(?:Traceback|failed$).*$", live.plane.log.read_text()) == []


def missed(live: Live, caller: Caller, counts: dict[str, int]) -> set[str]:
    """The caller's operations that never succeeded."""
    succeeded = {name.rpartition(" ")[0] for name in counts if name.rpartition(" ")[2].startswith("2")}
    theirs = {
        f"{method.upper()} {path}"
        for path, operations in live.operator("GET", "/openapi.json").body["paths"].items()
        for method, operation in operations.items()
        if {name for way in operation["security"] for name in way} & caller.reached
    }
    return theirs - succeeded - caller.beside


def cases(output: str) -> int:
    """How many test cases the run generated."""
    found = re.search(r"Test cases:\s*\n?\s*([\d,]+) generated", output)
    assert found, output[-2000:]
    return int(found[1].replace(",", ""))


def test_without_a_key_only_what_is_public_answers(live: Live) -> None:
    document = live.operator("GET", "/openapi.json").body
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            body = {} if "requestBody" in operation else None
            for headers in ({}, {"X-API-Key": "wrong"}, {"Authorization": "Bearer wrong"}):
                answer = call(live.url, method.upper(), path.replace("{id}", "one"), body, headers)
                if operation["security"]:
                    assert (answer.status, answer.code) in ((401, "bad_api_key"), (401, "bad_token")), (method, path)
                else:
                    assert answer.status in (200, 404), (method, path)
