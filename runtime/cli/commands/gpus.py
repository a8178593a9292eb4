"""``heterofleet gpus``."""

from __future__ import annotations

from typing import Any

import click

from runtime.cli import show
from runtime.cli.client import part
from runtime.cli.context import Invocation, remote
from runtime.cli.output import Column, emit, print_table, say
from runtime.cli.why import print_why
from runtime.protocol.routes import GPUS

COLUMNS = (
    Column("NODE", lambda g: show.text(g.get("node_id")), keep=True),
    Column("CARD", lambda g: show.text(g.get("uuid"))),
    Column("MODEL", lambda g: _model(g)),
    Column("MEM", lambda g: show.mib(g.get("memory_total_mib")), keep=True, right=True),
    Column("UTIL", lambda g: show.text(g.get("utilization_pct")), keep=True, right=True),
    Column("HEALTH", lambda g: show.text(g.get("health")), keep=True),
    Column("MODE", lambda g: show.text(g.get("mode")), keep=True),
    Column("TASK", lambda g: show.text(g.get("allocated_to"))),
)


@click.group()
def gpus() -> None:
    """Cards of the fleet."""


@gpus.command("list")
@remote
def list_gpus(call: Invocation) -> None:
    """All cards, with health and who holds them."""
    emit(call.client.get(GPUS), call.output, _table)


@gpus.command()
@click.argument("uuid", metavar="UUID")
@remote
def why(call: Invocation, uuid: str) -> None:
    """Why the card UUID is given out or not: since when, what was said of it, what would help."""
    emit(call.client.get(f"{GPUS}/{part(uuid)}/why"), call.output, print_why)


def _table(body: Any) -> None:
    cards = body.get("gpus") or []
    print_table(COLUMNS, cards, "no node has reported a card")
    if any(card.get("health") not in (None, "ok") for card in cards):
        say("a card that is not ok: `heterofleet gpus why UUID` says since when, why, and what would help")


def _model(card: Any) -> str:
    """The model without the vendor's name before it; the vendor where there is no model."""
    vendor, model = str(card.get("vendor") or ""), str(card.get("model") or "")
    first, _, rest = model.partition(" ")
    return rest if rest and first.lower() == vendor.lower() else show.text(model or vendor)
