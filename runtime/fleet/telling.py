"""Which control plane is told of a run, and what the playbooks are told of it where the inventory says nothing."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime.cli.client import Client
from runtime.cli.context import Invocation
from runtime.cli.errors import CliError
from runtime.cli.settings import connection
from runtime.fleet.environ import looks_secret
from runtime.fleet.inventory import Inventory
from runtime.fleet.record import Recorder
from runtime.fleet.screen import say
from runtime.protocol.credentials import password_in

SECRET_FILES = ("fleet_api_key_file", "fleet_token_file")
SHARED = {
    "fleet_server_url": "server_url",
    "fleet_token_file": "token_file",
    "fleet_ca_file": "ca_file",
    "fleet_allow_plain_http": "allow_plain_http",
}
"""Variable of the playbooks -> setting of the command line that means the same."""
LONGEST_SECRET = 64 * 1024


def said_by_settings(call: Invocation, inventory: Inventory) -> dict[str, Any]:
    """What the command line's own settings say and no host of the inventory does."""
    settings, hosts = call.loaded.settings, list(inventory.variables)
    found: dict[str, Any] = {}
    for name, setting in SHARED.items():
        value = getattr(settings, setting)
        if value and not any(name in inventory.variables[host] for host in hosts):
            found[name] = str(Path(value).expanduser().absolute()) if name.endswith("_file") else value
    return found


def recorder(call: Invocation, inventory: Inventory, silent: bool, makes_token: bool = False) -> Recorder:
    """The control plane of the command line's settings, else the inventory's. What the person gave must be right.

    ``makes_token``: the run itself makes the token's file where there is none.
    """
    if silent:
        return Recorder(None, say)
    loaded, hosts = call.loaded, list(inventory.variables)
    settings, origins = loaded.settings, dict(loaded.origins)
    more: dict[str, Any] = {}
    for name, setting in SHARED.items():
        value = inventory.said(name, hosts)
        if value and not getattr(settings, setting) and not (setting == "token_file" and settings.token):
            more[setting], origins[setting] = value, f"{name} of the inventory"
    settings = dataclasses.replace(settings, **more)
    if settings.server_url is None or not (settings.token or settings.token_file):
        missing = "address of the control plane" if settings.server_url is None else "operator token"
        return Recorder(None, say, f"no {missing} is known (--server, --token-file, or the inventory's)")
    if makes_token and not settings.token and not Path(settings.token_file or "").expanduser().exists():
        why = f"{settings.token_file} is not there yet; this run makes it, and is recorded when it ends"
        return Recorder(None, say, why, later=lambda: Client(connection(settings, origins)[0]))
    try:
        to, warnings = connection(settings, origins)
    except CliError as error:
        if not {"server_url", "token_file", "ca_file"} & set(more):
            raise
        return Recorder(None, say, error.message)  # the preflight of the playbooks has the say of the inventory
    for warning in warnings:
        say(f"warning: {warning}")
    return Recorder(Client(to), say)


def masked(inventory: Inventory) -> Iterator[str]:
    """Secrets that the run handles by their files or variables: should one be printed after all, it is masked."""
    for variables in inventory.variables.values():
        for name, value in variables.items():
            if name in SECRET_FILES and isinstance(value, str) and "{{" not in value:
                with contextlib.suppress(OSError, UnicodeDecodeError), Path(value).expanduser().open("rb") as file:
                    yield file.read(LONGEST_SECRET).decode().strip()
            else:
                yield from _secrets_in(name, value)


def _secrets_in(name: str, value: Any) -> Iterator[str]:
    """What a variable says itself: under a name that looks like a secret's, or as the login in an address."""
    if isinstance(value, dict):
        for inner, one in value.items():
            yield from _secrets_in(str(inner), one)
    elif isinstance(value, list):
        for one in value:
            yield from _secrets_in(name, one)
    elif isinstance(value, str):
        if looks_secret(name):
            yield value
        yield from filter(None, [password_in(value)])
