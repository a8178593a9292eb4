"""A text in which nothing is read is said to be one, and never gives a zero; Docker's words come with what to do."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from runtime.agent.main import main
from runtime.agent.parse.docker import ADVICE, parse
from runtime.agent.parse.registry import CARDS, TEXTS, parse_text
from runtime.agent.tasks import images

RUBBISH = "the quick brown fox\njumps over\n"
ASKED = [*((tool, ()) for tool in sorted({*CARDS, *TEXTS})), ("nvidia-smi", ("topo", "-m")), ("docker", ("logs",))]


@pytest.mark.parametrize("text", ["", RUBBISH])
@pytest.mark.parametrize(("tool", "arguments"), ASKED)
def test_nothing_is_said_and_counts_nothing(tool: str, arguments: tuple[str, ...], text: str) -> None:
    found = parse_text(tool, list(arguments), text)
    assert found["error"].startswith(tool) and "its output has n" in found["error"]
    assert [key for key, value in found.items() if value == 0] == []


@pytest.mark.parametrize(
    ("tool", "arguments", "text", "key"),
    [
        ("rdma", ["-j", "link"], "[]\n", "active"),
        ("sysfs", [], "{}", "infiniband"),
        ("ibstat", [], "CA 'ibx_0'\n\tPort 1:\n\t\tState: Down\n", "active"),
    ],
)
def test_a_text_that_says_none_does(tool: str, arguments: list[str], text: str, key: str) -> None:
    found = parse_text(tool, arguments, text)
    assert found[key] == 0 and "error" not in found


def test_ports_whose_state_is_not_told_are_not_counted_as_down() -> None:
    found = parse_text("ibstat", [], "CA 'ibx_0'\n\tPort 1:\n\t\tRate: 400\n")
    assert (len(found["ports"]), found["active"], found["infiniband"]) == (1, None, None)


@pytest.mark.parametrize(
    "words",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that it is installed.",
        "NVIDIA-SMI has failed because it couldn’t communicate with the NVIDIA driver.",
        "couldn't communicate with the NVIDIA driver",
        "error: could not communicate with the NVIDIA driver, says nvidia-smi",
    ],
)
def test_a_driver_that_is_away_is_known_however_it_is_retold(words: str) -> None:
    found = parse_text("nvidia-smi", [], words)
    assert found["error_kind"] == "driver_not_loaded" and "communicate" in found["error"]


def test_every_verdict_of_docker_s_words_has_its_advice() -> None:
    words = {word for _, _, _, word in images._RULES} | {"program", "unknown"}
    assert words - set(ADVICE) == set()


@pytest.mark.parametrize(
    ("arguments", "text", "advice"),
    [
        (["pull"], "toomanyrequests: rate limit", "ratelimit"),
        (["run"], "Bind for 0.0.0.0:8000 failed: port is already allocated.", "port"),
        (["run"], "denied to somebody", "unknown"),
        (["inspect"], '"State": {"OOMKilled": true, "ExitCode": 137}', "oom_killed"),
        (["inspect"], '"State": {"ExitCode": 0}', None),
    ],
)
def test_docker_s_words_come_with_what_to_do(arguments: list[str], text: str, advice: Any) -> None:
    assert parse(arguments, text).get("advice") == (ADVICE[advice] if advice else None)


def test_the_command_says_on_standard_error_that_nothing_was_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert main(["parse", "ibstat"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["error"] == said.err.strip() == "ibstat: its output has nothing that is known"


def test_arguments_are_not_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["parse"])
    said = capsys.readouterr().err
    assert "required: TOOL\n" in said and "TOOL [ARGS ...]" in said
