"""Operators' tokens: 256 random bits, shown once, stored as a hash."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from runtime.protocol import times
from runtime.protocol.nodes import EventKind
from runtime.server.auth import token_hash
from runtime.server.services.events import emit
from runtime.server.store.database import Database
from runtime.server.store.tables import tokens
from runtime.server.store.transaction import Tx

PREFIX = "hft_"
"""So that a token is known for one wherever it turns up."""


@dataclass(frozen=True)
class TokenInfo:
    """A token as it may be shown. ``expires_at`` None: never."""

    name: str
    role: str
    created_at: str
    expires_at: str | None
    expired: bool


class TokenExists(Exception):
    """There is a token of this name."""


def create(db: Database, name: str, role: str, now: datetime, days: float | None) -> str:
    """Make a token; the return value is its only copy. Raises TokenExists."""
    token = PREFIX + secrets.token_urlsafe(32)
    expires = times.to_wire(now + timedelta(days=days)) if days is not None else None

    def change(tx: Tx) -> None:
        if tx.execute(sa.select(tokens.c.name).where(tokens.c.name == name)).first() is not None:
            raise TokenExists(name)
        tx.execute(
            sa.insert(tokens).values(
                name=name, hash=token_hash(token), role=role, created_at=times.to_wire(now), expires_at=expires
            )
        )
        emit(tx, EventKind.OPERATOR_ACTION, code="token_created", actor="server", detail=f"{role} token {name!r}")

    db.write(change)
    return token


def listed(db: Database, now: datetime) -> list[TokenInfo]:
    """Every token, by name."""
    moment = times.to_wire(now)
    with db.read() as connection:
        rows = connection.execute(sa.select(tokens).order_by(tokens.c.name)).all()
    return [
        TokenInfo(
            row.name,
            row.role,
            row.created_at,
            row.expires_at,
            row.expires_at is not None and row.expires_at <= moment,
        )
        for row in rows
    ]


def revoke(db: Database, name: str) -> bool:
    """Whether there was one; it is refused from the next request on."""

    def change(tx: Tx) -> bool:
        gone = tx.execute(sa.delete(tokens).where(tokens.c.name == name)).rowcount > 0
        if gone:
            emit(tx, EventKind.OPERATOR_ACTION, code="token_revoked", actor="server", detail=f"token {name!r}")
        return gone

    return db.write(change)
