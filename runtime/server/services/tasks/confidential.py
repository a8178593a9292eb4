"""What of a task is secret (env values, registry_auth), and how it is taken apart and put together again."""

from __future__ import annotations

import dataclasses
from typing import Any

import sqlalchemy as sa

from runtime.protocol.codec import decode, encode
from runtime.protocol.tasks import HIDDEN, RegistryAuth, TaskSpec
from runtime.server.exit_codes import EXIT_CONFIGURATION
from runtime.server.store.errors import StoreError
from runtime.server.store.tables import tasks
from runtime.server.store.vault import Vault, VaultError


def public_part(spec: TaskSpec) -> dict[str, Any]:
    """``spec`` as JSON, env values hidden and without ``registry_auth``."""
    env = dict.fromkeys(spec.env, HIDDEN) if spec.env is not None else None
    shown: dict[str, Any] = encode(dataclasses.replace(spec, env=env, registry_auth=None))
    return shown


def secret_part(spec: TaskSpec) -> dict[str, Any] | None:
    """What :func:`public_part` leaves out; None when there is nothing. ``spec.env`` is a mapping by now."""
    secrets: dict[str, Any] = {}
    if spec.env:
        secrets["env"] = dict(spec.env) if isinstance(spec.env, dict) else list(spec.env)
    if spec.registry_auth is not None:
        secrets["registry_auth"] = encode(spec.registry_auth)
    return secrets or None


def load_key(connection: sa.Connection, vault: Vault) -> None:
    """Read the vault's key, which is the one that this database's secrets were sealed with; made only where
    nothing is sealed. Raises StoreError (78, 73).

    With another one every claim of such a task would fail after it was stored.
    """
    sealed = sa.select(tasks.c.secrets).where(tasks.c.secrets.is_not(None)).limit(1)
    found = connection.execute(sealed).scalar()
    vault.load(make=found is None)
    try:
        if found is not None:
            vault.open(found)
    except VaultError:
        raise StoreError(
            EXIT_CONFIGURATION,
            f"The key file {vault.key_path} is not the one that the secrets in this database were sealed with; put "
            "the file that belongs to this database back, or name it in secret_key_file.",
        ) from None


def public_spec(stored: dict[str, Any]) -> TaskSpec:
    """The spec as anybody may read it."""
    return decode(TaskSpec, stored)


def whole_spec(stored: dict[str, Any], sealed: bytes | None, vault: Vault) -> TaskSpec:
    """The spec with its secrets: for the owner of the claim only."""
    spec = public_spec(stored)
    if sealed is None:
        return spec
    secrets = vault.open(sealed)
    auth = secrets.get("registry_auth")
    return dataclasses.replace(
        spec,
        env=secrets.get("env", spec.env),
        registry_auth=decode(RegistryAuth, auth) if auth is not None else None,
    )
