"""Why a task, a node or a card is as it is, for people."""

from __future__ import annotations

from typing import Any

import click

from runtime.cli import show
from runtime.cli.output import Column, print_table

COLUMNS = (
    Column("NODE", lambda c: show.text(c.get("node_id"))),
    Column("OK", lambda c: show.text(c.get("ok")), keep=True),
    Column("CODE", lambda c: show.text(c.get("code"))),
    Column("WHAT", lambda c: show.text(c.get("text")), wrap=True),
)


def print_why(body: Any) -> None:
    """The sentence, the smallest change, and every constraint on every node."""
    click.echo(body.get("summary") or show.text(body.get("state")))
    change = body.get("smallest_change")
    if change:
        click.echo(f"smallest change: {change.get('text')}")
    rows = [{**c, "node_id": n.get("node_id")} for n in body.get("nodes") or [] for c in n.get("constraints") or []]
    if rows:
        click.echo()
        print_table(COLUMNS, rows, "no constraints")
