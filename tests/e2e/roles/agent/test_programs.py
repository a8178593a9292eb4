"""The role's own programs without a host: which build a machine gets, and which lines of agent.yaml stay."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

from runtime.artifacts.scripts import script

ROOT = Path(__file__).resolve().parents[4]
ROLE = ROOT / "roles" / "agent"
MANIFEST = {
    "version": "1.2.3",
    "commit": "abc",
    "dirty": False,
    "builds": {arch: {"file": arch, "size": 1, "md5": "", "sha256": arch[0] * 64} for arch in ("amd64", "arm64")},
}


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROLE / "files"))
    yield importlib.import_module("look")
    for name in ("look", "node"):
        sys.modules.pop(name)


@pytest.mark.parametrize(
    ("machine", "release"),
    [("x86_64", "1.2.3-abc-aaaaaaaa"), ("aarch64", "1.2.3-abc-aaaaaaaa"), ("riscv64", "")],
)
def test_a_host_gets_the_build_of_what_it_says_it_is(
    look: ModuleType, monkeypatch: pytest.MonkeyPatch, machine: str, release: str
) -> None:
    machines = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())["agent__machines"]
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine))
    wanted = look.look(machines, manifest=MANIFEST)["wanted"]
    assert (wanted["release"], wanted.get("file", "")) == (release, machines.get(machine, ""))


TEXTS = (
    "",
    "# ours\nmax_tasks: 9\n",
    '#: HeteroFleet agent.\nwritten_for: "1"\nnode_id: a\nlabels:\n  site: x\n  rack: y\n# ours\nvolumes:\n- /a\n',
    "labels: {a: b}\n- odd\n\tmore\nserver_url: 'http://x'\n\nmax_tasks: 1",
    "server_urls: 1\nnode_id: null\nlabels:\n- a\n# comment\n- b\nkept: 1\n",
)


@pytest.mark.parametrize("text", TEXTS)
def test_role_and_script_keep_the_same_lines(look: ModuleType, tmp_path: Path, text: str) -> None:
    """Two readers of one file: what one of them dropped would be gone from a host at its next upgrade."""
    file, program = tmp_path / "agent.yaml", tmp_path / "program"
    file.write_text(text)
    whole = script("install-agent.sh", "http://198.18.0.1:3333")
    functions = whole.partition("\ncurrent_setting() {")[2].partition("\n# The system key into KEY")[0]
    asked = "\n".join(f'printf "%s\\0" "$(current_setting {name})"' for name in ("node_id", "labels", "ca_file"))
    program.write_text(f"BASE={file}\ncurrent_setting() {{{functions}\nkept_settings; printf '\\0'\n{asked}")
    said = subprocess.run(["sh", program], capture_output=True, text=True, check=True).stdout.split("\0")
    base = look._base(str(file))
    assert base["kept"] == said[0]
    assert [base["values"].get(name, "") for name in ("node_id", "labels", "ca_file")] == said[1:4]
