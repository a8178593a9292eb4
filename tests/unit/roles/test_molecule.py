"""The scenarios of molecule/: what they share is there, and their Ansible has the project's settings."""

from __future__ import annotations

import configparser
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.roles import ROOT

BASE: dict[str, Any] = yaml.safe_load((ROOT / ".config" / "molecule" / "config.yml").read_text())
SCENARIOS = sorted(path.parent for path in (ROOT / "molecule").glob("*/molecule.yml"))
NAMES = ["control_plane", "default", "everything", "force", "interpreters", "offline", "rollback", "upgrade"]
# Of the controller's own place, which molecule says itself.
PLACES = {"roles_path"}


def test_all_scenarios_are_there() -> None:
    assert [path.name for path in SCENARIOS] == NAMES


def test_molecule_s_ansible_has_the_project_s_settings() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "ansible.cfg")
    said = {
        section: {name: value for name, value in settings[section].items() if name not in PLACES}
        for section in settings.sections()
    }
    ours = {
        section: {name: str(value) for name, value in options.items()}
        for section, options in BASE["provisioner"]["config_options"].items()
    }
    assert ours == said


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.name)
def test_check_mode_comes_before_anything_is_done(scenario: Path) -> None:
    said = yaml.safe_load((scenario / "molecule.yml").read_text())
    assert said["scenario"]["name"] == scenario.name
    sequence = said["scenario"].get("test_sequence", BASE["scenario"]["test_sequence"])
    again = "side_effect" if scenario.name == "force" else "idempotence"  # levelling starts every agent anew
    steps = [step for step in sequence if step in ("check", "converge", again, "verify", "destroy")]
    assert steps == ["check", "converge", again, "verify", "destroy"]
    if again == "side_effect":
        assert (scenario / "side_effect.yml").read_text().count("force_upgrade.yml") == 1
    assert (scenario / "converge.yml").exists()
