"""What the command line tells the playbooks. It is written down in clear with the run, so no secret is among it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from runtime.cli.errors import CliError, ExitCode
from runtime.fleet.environ import has_login, looks_secret

OURS = ("fleet_stop_file",)
RELEASE = "agent_release"
"""Which kept release a rollback goes to."""


def parse_set(words: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` of ``--set``; values as YAML reads them. Raises CliError (usage)."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise CliError(f"--set {name}: wanted NAME=VALUE with a variable's name", ExitCode.USAGE)
        try:
            said = yaml.safe_load(value) if value else ""
        except yaml.YAMLError:
            raise CliError(f"--set {name}: the value is not YAML", ExitCode.USAGE) from None
        if looks_secret(name) or holds_secret(said):
            # The value is not repeated: it may be one.
            raise CliError(
                f"--set {name}: a variable of this name or in it may hold a secret, and what is given here can be read "
                "in the list of processes and is kept with the run; put it into a file of mode 0600 and give the path "
                f"({name}_file)",
                ExitCode.USAGE,
            )
        if name in OURS:
            raise CliError(f"--set {name}: this one is set by the command itself", ExitCode.USAGE)
        found[name] = said
    return found


def holds_secret(value: Any) -> bool:
    """Whether a name within the value looks like a secret's, or an address in it has a password."""
    if isinstance(value, dict):
        return any(looks_secret(str(name)) or holds_secret(one) for name, one in value.items())
    if isinstance(value, list):
        return any(map(holds_secret, value))
    return isinstance(value, str) and has_login(value)
