"""The project's own playbooks by Ansible alone, with an inventory that has nobody whom they are for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("playbook", "said"),
    [
        ("control_plane", "no host of the group control_plane is in the inventory: nothing was done"),
        ("deploy", "no host of the group nodes is in this run: nothing was done"),
    ],
)
def test_a_run_for_nobody_says_so_and_ends_with_an_error(tmp_path: Path, playbook: str, said: str) -> None:
    """Plays over empty groups alone would end well, with an empty recap."""
    (tmp_path / "inventory.yml").write_text("{nodes: {hosts: {}}, control_plane: {hosts: {}}}\n")
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            "--inventory=inventory.yml",
            ROOT / "playbooks" / f"{playbook}.yml",
        ],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stdout
