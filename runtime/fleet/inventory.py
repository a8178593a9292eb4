"""Which hosts a run is about, as Ansible itself reads the inventory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.cli.errors import CliError, ExitCode

PATIENCE_S = 300
"""A dynamic inventory asks somebody else."""


@dataclass(frozen=True)
class Inventory:
    """``groups``: name -> its hosts, those of groups below it too. ``variables``: host -> what is said of it."""

    groups: Mapping[str, Sequence[str]]
    variables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    def said(self, name: str, hosts: Sequence[str]) -> Any:
        """A variable's value where one of ``hosts`` has it in plain words; a template is none."""
        for host in hosts:
            value = self.variables.get(host, {}).get(name)
            if value is not None and not (isinstance(value, str) and "{{" in value):
                return value
        return None


def read_inventory(
    sources: Sequence[str], limit: str | None, playbooks: Path, environ: Mapping[str, str], cwd: Path
) -> Inventory:
    """Ask `ansible-inventory`. Raises CliError (usage) where it cannot be read."""
    words = [str(Path(sys.executable).parent / "ansible-inventory"), "--list", "--playbook-dir", str(playbooks)]
    for source in sources:
        words += ["--inventory", source]
    if limit is not None:
        words += ["--limit", limit]
    try:
        asked = subprocess.run(
            words,
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise CliError(f"{words[0]} is missing; install the extra: heterofleet[fleet]") from None
    except subprocess.TimeoutExpired:
        raise CliError(f"the inventory was not read within {PATIENCE_S} s") from None
    if asked.returncode != 0:
        raise CliError(f"the inventory cannot be read: {_complaint(asked.stderr)}", ExitCode.USAGE)
    faults = [line for line in asked.stderr.splitlines() if "Unable to parse" in line or "Failed to parse" in line]
    if faults:
        raise CliError(f"the inventory cannot be read: {_complaint(asked.stderr)}", ExitCode.USAGE)
    return parse_inventory(asked.stdout)


def parse_inventory(text: str) -> Inventory:
    """What `ansible-inventory --list` printed."""
    try:
        listed = json.loads(text)
    except ValueError:
        raise CliError("ansible-inventory printed what is not JSON") from None

    def hosts_of(group: str, seen: frozenset[str]) -> list[str]:
        body = listed.get(group) or {}
        found = list(body.get("hosts") or [])
        for child in body.get("children") or []:
            if child not in seen:
                found += hosts_of(child, seen | {child})
        return list(dict.fromkeys(found))

    groups = {name: hosts_of(name, frozenset([name])) for name in listed if name != "_meta"}
    return Inventory(groups, (listed.get("_meta") or {}).get("hostvars") or {})


def _complaint(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines)[:600] or "no reason was given"
