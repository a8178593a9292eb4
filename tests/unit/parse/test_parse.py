"""``heterofleet-agent parse``: every recorded output by its command, and what people paste of Docker and engines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.agent.parse.registry import CARDS, TEXTS, UnknownTool, parse_text
from tests.fuzz import texts
from tests.samples import Sample, differences, samples

SAMPLES = samples()
VERDICTS = samples("docker", "engines")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.group}-{sample.name}")
def test_every_recorded_output_is_read_by_its_command(sample: Sample) -> None:
    found = parse_text(sample.tool, list(sample.arguments), sample.text)
    assert json.loads(json.dumps(found)) == found
    if "cards" in sample.expect:
        wanted = [
            (card["index"], card["name"], card["memory_total_mib"], card["memory_used_mib"], card["health"])
            for card in sample.expect["cards"]
        ]
        assert [
            (card["index"], card["model"], card["memory_total_mib"], card["memory_used_mib"], card["health"]["verdict"])
            for card in found["gpus"]
        ] == wanted
        assert found["devices"] == sample.expect["devices"]
        assert (found["error_kind"] is not None) == ("error_kind" in sample.expect)


@pytest.mark.parametrize("sample", VERDICTS, ids=lambda sample: f"{sample.group}-{sample.name}")
def test_docker_and_engines_get_their_verdict(sample: Sample) -> None:
    assert differences(sample.expect, parse_text(sample.tool, list(sample.arguments), sample.text)) == []


CONFLICT = (
    'docker: Error response from daemon: Conflict. The container name "/a" is already in use by container "ab12".'
)
NEVER_RAN = '"StartedAt": "0001-01-01T00:00:00Z", "FinishedAt": "0001-01-01T00:00:00Z"}'
RAN = '"StartedAt": "2026-01-01T00:00:00.5Z", "FinishedAt": "2026-01-01T00:00:02Z"}'
PASTED: list[tuple[str, list[str], str, dict[str, Any]]] = [
    (
        *("docker", ["pull"], "Error: manifest for a.example/b:2 not found: manifest unknown"),
        {"kind": "permanent", "reason": "manifest"},
    ),
    (
        *("docker", ["run"], CONFLICT),
        {"kind": "permanent", "reason": "conflict", "container_name": "a", "conflicting_container": "ab12"},
    ),
    (
        *("docker", ["run"], "Bind for 0.0.0.0:8000 failed: port is already allocated."),
        {"kind": "permanent", "reason": "port", "ambiguous": True, "port": 8000},
    ),
    *(
        ("docker", ["run"], f"Bind for {address}:8000 failed: port is already allocated.", {"port": 8000})
        for address in ("127.0.0.1", "::", "[::]", "::1", "fd00::a:1", "1:2:3:4:5:6:7:8")
    ),
    ("docker", ["run"], "something that nobody has seen", {"kind": None, "reason": None}),
    (
        *("docker", ["inspect"], '"State": {"OOMKilled": true, "ExitCode": 137, ' + NEVER_RAN),
        {"reason": "oom_killed", "exit_code": 137, "ran_seconds": None},
    ),
    (
        *("docker", ["inspect"], '"State": {"OOMKilled": false, "ExitCode": 0, ' + RAN),
        {"kind": None, "reason": "exited", "ran_seconds": 1.5},
    ),
    ("docker", ["inspect"], '"State": {"ExitCode": ', {"kind": None, "reason": None}),
    (
        *("vllm", [], "torch.OutOfMemoryError: CUDA out of memory. GPU 3 has a total capacity of 79.10 GiB"),
        {"kind": "permanent", "reason": "memory", "gpu_index_in_process": 3, "total_gib": 79.1},
    ),
    ("vllm", [], "write failed: No space left on device", {"kind": "permanent", "reason": "disk"}),
    (
        *("sglang", [], "OSError: [Errno 98] Address already in use"),
        {"kind": "permanent", "reason": "port", "http_port": True},
    ),
    (
        *("vllm", [], "RuntimeError: Engine core initialization failed. See root cause above."),
        {"kind": "permanent", "reason": "unknown", "ambiguous": True},
    ),
    ("vllm", [], "INFO: all is well", {"kind": None, "reason": None}),
    ("curl", [], "{not json", {"kind": None, "reason": None}),
]


@pytest.mark.parametrize(("tool", "arguments", "text", "wanted"), PASTED)
def test_what_people_paste(tool: str, arguments: list[str], text: str, wanted: dict[str, Any]) -> None:
    found = parse_text(tool, arguments, text)
    assert {key: found.get(key) for key in wanted} == wanted


@pytest.mark.parametrize("tool", sorted({*CARDS, *TEXTS}))
@pytest.mark.parametrize("text", ["", "\0", "{", "[]", '"State": {', "|||||", "é" * 100, "0" * 5000])
def test_rubbish_says_nothing_and_breaks_nothing(tool: str, text: str) -> None:
    found = parse_text(tool, [], text)
    assert not found.get("gpus") and not found.get("ports") and not found.get("models")
    assert found.get("kind") is None


def test_a_command_is_known_by_its_last_part() -> None:
    (sample, *_) = texts.own("npu-smi")
    assert parse_text("/usr/local/bin/npu-smi", ["info"], sample.text) == parse_text("npu-smi", ["info"], sample.text)
    assert parse_text("nvidia-smi.exe", [], "")["gpus"] == []


def test_an_unknown_tool_is_told_which_there_are() -> None:
    with pytest.raises(UnknownTool, match=r"no parser for 'tpu-smi'; there are: brsmi, .*nvidia-smi"):
        parse_text("tpu-smi", [], "")
