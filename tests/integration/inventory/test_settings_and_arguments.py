"""What ``inventory`` is told: settings that can be read, what the agent has known, and wrong arguments."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest

from runtime.agent.hardware.remembered import FILE, Remembered, as_kept
from runtime.agent.hardware.report import NO_CARD, NOT_LOOKED
from runtime.agent.main import main
from runtime.protocol.hardware import Gpu
from tests.integration.inventory.fake_tools import answering, inventory
from tests.integration.inventory.test_machines import CUT, WHOLE, cut_machine, mixed


def settings(folder: Path, **hardware: object) -> str:
    """A file without a server and a key, which ``inventory`` needs none of."""
    path = folder / "agent.yaml"
    path.write_text(json.dumps({"state_dir": str(folder / "state"), "hardware": hardware}))
    return str(path)


def refused(*words: str) -> str:
    """What is said on standard error with exit code 2."""
    with contextlib.redirect_stderr(io.StringIO()) as aside, contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            code = main(["inventory", *words])
        except SystemExit as end:
            code = int(end.code or 0)
    assert (code, out.getvalue()) == (2, "")
    return aside.getvalue()


def test_it_sees_by_the_settings_what_the_scheduler_would(tmp_path: Path) -> None:
    found, _ = inventory("--no-nvml", "--config", settings(tmp_path, detect="all", tools=mixed(tmp_path)))
    assert {gpu["vendor"] for gpu in found["gpus"]} == {"ascend", "nvidia"}
    found, _ = inventory("--no-nvml", "--config", settings(tmp_path, virtual_cards=3))
    assert [gpu["vendor"] for gpu in found["gpus"]] == ["virtual"] * 3


def test_a_flag_is_over_the_file(tmp_path: Path) -> None:
    config = settings(tmp_path, tools={"nvidia-smi": "/none/nvidia-smi"})
    found, _ = inventory("--no-nvml", "--config", config, "--nvidia-smi", str(cut_machine(tmp_path, old=False)))
    assert found["source"] == "nvidia-smi" and found["error"] is None


def test_settings_that_were_named_and_cannot_be_used_are_told(tmp_path: Path) -> None:
    found, table = inventory("--no-gpu", "--config", f"{tmp_path}/none.yaml")
    assert f"no file {tmp_path}/none.yaml" in table and any("none.yaml" in one for one in found["cannot"])
    found, table = inventory("--no-gpu", "--config", settings(tmp_path, detect="both"))
    assert "hardware.detect" in table and "first or all" in table


def known(folder: Path, *gpus: Gpu) -> None:
    state = folder / "state"
    state.mkdir()
    (state / FILE).write_text(json.dumps(as_kept(Remembered(("nvidia",), gpus))))


def test_where_the_agent_has_known_cards_there_are_no_virtual_ones(tmp_path: Path) -> None:
    """The tool answers, and knows no card any more."""
    known(tmp_path, Gpu(WHOLE, "nvidia", 1))
    tool = answering(tmp_path / "nvidia-smi", {}, otherwise="echo No devices were found")
    found, table = inventory("--no-nvml", "--config", settings(tmp_path), "--nvidia-smi", str(tool))
    assert [(gpu["uuid"], gpu["health"]["ok"]) for gpu in found["gpus"]] == [(WHOLE, None)]
    assert found["error"] and NO_CARD in found["cannot"] and "unknown" in table


def test_a_card_that_is_gone_is_told_and_the_other_vendors_are_asked_all_the_same(tmp_path: Path) -> None:
    known(tmp_path, Gpu(CUT, "nvidia", 0), Gpu(WHOLE, "nvidia", 1), Gpu("GPU-gone", "nvidia", 2))
    tool = cut_machine(tmp_path, old=False)
    found, table = inventory("--no-nvml", "--config", settings(tmp_path), "--nvidia-smi", str(tool))
    assert "card GPU-gone, not listed: missing since" in table
    assert len(found["detection"]) == 10 and found["error"] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--ib-root", "/none/such"), ["--ib-root", "no folder /none/such"]),
        (("--tool", "npu-smii=/x"), ["npu-smii", "the nearest is npu-smi", "nvidia-smi, ", "efsmi"]),
        (("--tool", "zzz=/x"), ["'zzz'", "nvidia-smi, "]),
    ],
)
def test_what_is_mistyped_is_refused(words: tuple[str, ...], told: list[str]) -> None:
    said = refused(*words)
    assert [one for one in told if one not in said] == []


def test_who_does_not_look_says_so(tmp_path: Path) -> None:
    found, table = inventory("--no-gpu")
    assert NOT_LOOKED in table and NO_CARD not in found["cannot"]


@pytest.mark.parametrize("tool", ["npu-smi", "nvidia-smi"])
def test_a_tool_that_does_not_find_its_own_program_is_not_said_to_be_missing(tool: str, tmp_path: Path) -> None:
    path = tmp_path / tool
    path.write_text(f"#!/bin/sh\nexec /opt/none/{tool}\n")
    path.chmod(0o755)
    found, table = inventory("--no-nvml", "--tool", f"{tool}={path}")
    assert f"{tool} is there ({path}) and failed: " in found["error"] and f"/opt/none/{tool}" in found["error"]
    assert found["error"] in table
