"""A key given twice is a fault in every file that people write, and nothing of the file is quoted."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.agent import settings as agent_settings
from runtime.cli.errors import CliError
from runtime.cli.settings import CONFIG, read_settings
from runtime.cli.task_spec import read_spec
from runtime.protocol.settings import SettingsError
from runtime.server import settings as server_settings


def server_yaml(text: str, folder: Path) -> None:
    file = folder / "server.yaml"
    file.write_text(text)
    server_settings.load(file, environ={})


def agent_yaml(text: str, folder: Path) -> None:
    file = folder / "agent.yaml"
    file.write_text(text)
    agent_settings.load_settings(file, {}, {})


def config_yaml(text: str, folder: Path) -> None:
    file = folder / CONFIG
    file.parent.mkdir(parents=True)
    file.write_text(text)
    read_settings({}, {"HOME": str(folder)})


def task_file(text: str, _: Path) -> None:
    read_spec(io.StringIO(text), "task.yaml")


@pytest.mark.parametrize("read", [server_yaml, agent_yaml, config_yaml, task_file])
def test_a_key_given_twice_is_refused_with_its_place(read: Callable[[str, Path], None], tmp_path: Path) -> None:
    with pytest.raises((SettingsError, CliError), match=r"token is given twice") as refused:
        read("token: first-secretword\nother: 1\ntoken: second-secretword\n", tmp_path)
    assert "secretword" not in str(refused.value)
    assert "3" in str(refused.value)
