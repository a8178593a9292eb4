"""Numbers that no JSON can be made of, and that no clock or engine can count with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.server_core.plane import FULL, Agent, Plane, running

BODY = b'{"name":"n","image":"one:1","kind":"inference",%s}'
WORDS = (b'"profile":{"x":NaN}', b'"profile":{"x":[-Infinity]}', b'"profile":{"x":{"y":Infinity}}')
TOO_LARGE = (
    b'"profile":{"x":1e999}',
    b'"profile":{"x":[-1e999]}',
    b'"timeout_s":1e999',
    b'"timeout_s":1e300',
    b'"start_timeout_s":1e300',
    b'"memory_mib":1180591620717411303424',
    b'"shm_mib":1180591620717411303424',
    b'"gpus":{"min_memory_mib":1180591620717411303424}',
)


def not_json(word: str) -> None:
    raise AssertionError(f"{word} in an answer")


@pytest.mark.parametrize("member", WORDS)
def test_words_for_numbers_are_no_json(tmp_path: Path, database_url: str, member: bytes) -> None:
    """They were stored, and every list with that task was no JSON any more; PostgreSQL ended in 500."""
    with running(tmp_path, database_url=database_url) as plane:
        refused = plane.operator("POST", "/api/v1/tasks", BODY % member)
        assert (refused.status, refused.code) == (400, "malformed_json")
        word = plane.operator("POST", "/api/v1/tasks", BODY % b'"profile":{"x":"NaN, Infinity"}')
        assert word.status == 201, "a text is a text"


@pytest.mark.parametrize("member", TOO_LARGE)
def test_numbers_beyond_use_are_refused(plane: Plane, member: bytes) -> None:
    """On the node they fail as its own fault, and three such tasks cordon it."""
    refused = plane.operator("POST", "/api/v1/tasks", BODY % member)
    assert (refused.status, refused.code) == (422, "invalid_task")
    (fault,) = refused.body["errors"]
    assert fault["path"].split(".")[0].encode() in member
    json.loads(refused.raw, parse_constant=not_json)


@pytest.mark.parametrize(
    ("sections", "status"),
    [
        (b'"host":{"hostname":"h","cpu_percent":NaN}', 422),
        (b'"host":{"hostname":"h","cpu_percent":1e999}', 422),
        (b'"gpu_stats":[{"uuid":"GPU-a","index":0,"temperature_c":1e999}]', 422),
        (b'"gpu_stats":[{"uuid":"GPU-a","index":0,"power_w":Infinity}]', 422),
        (b'"hcas":[{"name":"mlx5_0","rate_gbps":1e999}]', 422),
    ],
)
def test_a_beat_brings_numbers(plane: Plane, agent: Agent, sections: bytes, status: int) -> None:
    assert agent.beat(**FULL).status == 200
    raw = json.dumps(agent.body()).encode()[:-1] + b"," + sections + b"}"
    headers = {**agent.headers, "Content-Type": "application/json"}
    assert plane.call("POST", "/api/v1/agent/heartbeat", raw, headers).status == status
    json.loads(plane.operator("GET", "/api/v1/nodes").raw, parse_constant=not_json)
    json.loads(plane.operator("GET", "/api/v1/gpus").raw, parse_constant=not_json)


@pytest.mark.parametrize("digits", [4299, 4300, 4301, 20000])
def test_a_whole_number_of_any_length_is_no_fault_of_ours(plane: Plane, digits: int) -> None:
    answer = plane.operator("POST", "/api/v1/tasks", BODY % (b'"profile":{"x":%s}' % (b"9" * digits)))
    assert answer.status in (201, 400, 422)
    assert plane.operator("GET", "/api/v1/tasks").status == 200
