"""Where playbooks, roles and templates are, and what a playbook's plays say before it is run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from runtime.cli.errors import CliError, ExitCode

PARTS = ("playbooks", "roles", "templates")
INSTALLED = Path("share/heterofleet")
"""Below the prefix of the Python that runs this: where an installed package has them."""


@dataclass(frozen=True)
class Play:
    """``serial``: how many hosts a wave has, as written (a list, a number, a template); None: all at once."""

    name: str
    hosts: Any = None
    serial: Any = None


def find_project(given: Path | None) -> Path:
    """The folder with PARTS: the one that was named, else this checkout, else the installed one."""
    if given is not None:
        if _whole(given):
            return given.resolve()
        raise CliError(f"{given} has no {_missing(given)}; --project wants a checkout", ExitCode.USAGE)
    checkout, installed = Path(__file__).resolve().parents[2], Path(sys.prefix) / INSTALLED
    for place in (checkout, installed):
        if _whole(place):
            return place
    raise CliError(
        f"no playbooks here: neither {checkout} nor {installed} has {_missing(installed)}; name a checkout with "
        "--project DIR",
        ExitCode.USAGE,
    )


def read_plays(playbook: Path) -> list[Play]:
    """The plays of a playbook in their order; what cannot be read is for Ansible to complain of."""
    try:
        document = yaml.safe_load(playbook.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return []
    plays = [play for play in document if isinstance(play, dict)] if isinstance(document, list) else []
    return [
        Play(str(play.get("name") or play.get("hosts") or ""), play.get("hosts"), play.get("serial")) for play in plays
    ]


def _whole(place: Path) -> bool:
    return all((place / part).is_dir() for part in PARTS)


def _missing(place: Path) -> str:
    return " and no ".join(f"{part}/" for part in PARTS if not (place / part).is_dir())
