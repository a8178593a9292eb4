"""Roles and playbooks as text: what every one of them keeps to."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir() and not path.name.startswith("."))
PLAYBOOKS = sorted((ROOT / "playbooks").glob("*.yml"))
SCENARIOS = sorted((ROOT / "molecule").rglob("*.yml"))
BLOCKS = ("block", "rescue", "always")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def tasks_in(listed: Any) -> Iterator[dict[str, Any]]:
    """Every task of a list, those in blocks too; a block itself is none."""
    for task in listed or ():
        if any(word in task for word in BLOCKS):
            for word in BLOCKS:
                yield from tasks_in(task.get(word))
        else:
            yield task


def tasks_of(path: Path) -> Iterator[dict[str, Any]]:
    """Every task of a task file or of a playbook."""
    for item in loaded(path) or ():
        if "hosts" in item:
            for word in ("pre_tasks", "tasks", "post_tasks", "handlers"):
                yield from tasks_in(item.get(word))
        elif "ansible.builtin.import_playbook" not in item:
            yield from tasks_in([item])


def task_files() -> list[Path]:
    found = [path for role in ROLES for kind in ("tasks", "handlers") for path in sorted((role / kind).rglob("*.yml"))]
    return found + PLAYBOOKS


def specs(role: Path) -> dict[str, dict[str, Any]]:
    """Entry point -> its argument spec."""
    path = role / "meta" / "argument_specs.yml"
    return loaded(path)["argument_specs"] if path.exists() else {}


def variables(role: Path, folder: str) -> dict[str, Any]:
    """What defaults/ or vars/ says."""
    found: dict[str, Any] = {}
    for path in sorted((role / folder).rglob("*.yml")):
        found.update(loaded(path) or {})
    return found


def modules(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Programs of a role's, imported as they lie there: on a host they have plain names, which must not stand in
    anybody's way here."""
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(folder))
    try:
        return {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(folder))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(before)
