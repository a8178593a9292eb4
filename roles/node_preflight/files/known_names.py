"""Which variables of ours anything reads: every name in the roles, the playbooks and what documents them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

NAME = re.compile(r"\b(?:fleet|agent)_[a-z0-9_]+\b")
PLACES = ("roles/*/defaults", "roles/*/meta", "roles/*/vars", "roles/*/tasks", "roles/*/templates", "playbooks")


def known_names(project: Path) -> set[str]:
    return {name for path in _files(project) for name in NAME.findall(path.read_text("utf-8", "replace"))}


def _files(project: Path) -> Iterator[Path]:
    documented = project / "inventory/group_vars/all.yml"
    if documented.is_file():
        yield documented
    for place in PLACES:
        for folder in project.glob(place):
            yield from (path for path in folder.rglob("*") if path.suffix in (".yml", ".yaml", ".j2"))
