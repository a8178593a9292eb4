"""What the agent's removal refuses, without a host."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles import ROOT, modules

MODULES = modules(ROOT / "roles" / "agent" / "files", ("node", "record", "removal"))
node, removal = MODULES["node"], MODULES["removal"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A host with an agent and no state; gives what systemd was asked for."""
    words: list[str] = []
    unit = tmp_path / "unit"
    unit.touch()

    def service(*asked: str, **_: Any) -> tuple[int, str, str]:
        words.append(asked[0])
        return 0, "", ""

    for name in ("OPT", "STATE", "UNDO", "SETTINGS", "KEY_FILE", "CA_FILE", "WANTED_BY", "ETC", "COMMAND", "CURRENT"):
        monkeypatch.setattr(node, name, str(tmp_path / "none" / name))
    monkeypatch.setattr(node, "UNIT_FILE", str(unit))
    monkeypatch.setattr(node, "service", service)
    monkeypatch.setattr(node, "locked", contextlib.nullcontext)
    monkeypatch.setattr(node, "properties", lambda name: {name: "active"})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(removal, "_rmdir", lambda path: False)
    monkeypatch.setattr(removal.os.path, "isdir", lambda path: path == "/run/systemd/system")
    for name in ("PINS", "PROCESSES", "TASK_UNITS"):
        monkeypatch.setattr(removal, name, str(tmp_path / "none" / name))
    return words


def tasks(*names: str, unanswered: str = "") -> dict[str, Any]:
    return {"present": list(names), "running": list(names), "unanswered": unanswered}


@pytest.mark.parametrize("meanwhile", [tasks("task-new"), tasks(unanswered="docker ps ended with 1")])
def test_a_task_that_begins_before_the_agent_has_stopped_keeps_it(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, meanwhile: dict[str, Any]
) -> None:
    looks = iter([tasks(), meanwhile])
    monkeypatch.setattr(node, "task_containers", lambda: next(looks))
    with pytest.raises(node.Refusal, match="the agent runs again") as refused:
        removal.remove(purge=True, force=False)
    assert refused.value.restored == "untouched"
    assert asked == ["stop", "start"]
    assert Path(node.UNIT_FILE).is_file()


@pytest.mark.parametrize("named", [None, ["task-old"]])
def test_a_purge_goes_on_when_only_what_was_named_is_there(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, named: list[str] | None
) -> None:
    monkeypatch.setattr(node, "task_containers", lambda: tasks(*(named or ())))
    monkeypatch.setattr(removal, "_remove_task", lambda name: None)
    done = removal.remove(purge=True, force=False, remove_tasks=named)
    assert done["removed"] == [*(named or []), node.UNIT_FILE]
    assert asked[:2] == ["stop", "disable"]
    assert not Path(node.UNIT_FILE).exists()


@pytest.mark.parametrize(
    ("setting", "said"), [("docker_host: unix:///run/other.sock\n", "no docker command"), ("", "")]
)
def test_an_engine_that_only_the_agent_can_ask_is_not_taken_for_none(
    monkeypatch: pytest.MonkeyPatch, setting: str, said: str
) -> None:
    """The agent needs no docker command: without one nobody here can tell what its engine runs."""
    monkeypatch.setattr(node, "settings_text", lambda: setting)
    monkeypatch.setattr(node, "service", lambda *words: (0, "", ""))
    monkeypatch.setattr(node, "run", lambda *words, **more: (127, "", "no such file"))
    monkeypatch.setattr(node.os.path, "exists", lambda path: False)
    assert said in node.task_containers()["unanswered"]
    assert bool(node.task_containers()["unanswered"]) == bool(said)
