"""What is printed of a run that has ended, and the sentences that the control plane keeps of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click
import yaml

from runtime.cli.errors import MASKER
from runtime.cli.output import Column, print_table, printable
from runtime.fleet.actions import Action
from runtime.fleet.record import by_whom, names
from runtime.fleet.screen import duration, say
from runtime.fleet.summary import Row, Summary

UNKNOWN = "-"

COLUMNS = (
    Column("HOST", lambda row: row.host, keep=True),
    Column("OUTCOME", lambda row: row.result.value, keep=True),
    Column("FROM", lambda row: row.before or UNKNOWN, keep=True),
    Column("TO", lambda row: row.after or UNKNOWN, keep=True),
    Column("WAVE", lambda row: str(row.wave or UNKNOWN), keep=True, right=True),
    Column("TIME", lambda row: duration(row.seconds) if row.seconds is not None else UNKNOWN, keep=True, right=True),
    Column("REASON", lambda row: MASKER.text(row.reason or UNKNOWN), wrap=True),
)


def print_report(
    form: str, body: Mapping[str, Any], summary: Summary, action: Action, seconds: float, compared: str
) -> None:
    """Standard output gets the document (json, yaml) or the table, worst hosts first, and what was ``compared`` in
    detail; the verdict is said beside it."""
    if form == "json":
        click.echo(MASKER.text(json.dumps(body)))
    elif form == "yaml":
        click.echo(MASKER.text(yaml.safe_dump(dict(body), sort_keys=False, allow_unicode=True)).rstrip("\n"))
    else:
        order = {result: number for number, result in enumerate(type(summary.rows[0].result))} if summary.rows else {}
        rows: list[Row] = sorted(summary.rows, key=lambda row: order[row.result])
        print_table(COLUMNS, rows, "no host")
        if compared:
            click.echo("\n" + "\n".join(printable(line) for line in MASKER.text(compared).splitlines()))
    for error in summary.errors:
        say(printable(error))
    say(f"{action.name} {summary.outcome}: {summary.sentence()}, in {duration(seconds)}")


def begin_detail(action: Action, run_id: str, hosts: list[str]) -> str:
    return f"{action.name} begins on {len(hosts)} host(s), by {by_whom()}, run {run_id}: {names(hosts)}."


def end_detail(action: Action, run_id: str, summary: Summary, seconds: float, stop: str | None) -> str:
    parts = [
        f"{action.name} {summary.outcome}: {summary.sentence()}, in {duration(seconds)}, by {by_whom()}, run {run_id}"
    ]
    if stop is not None:
        parts.append(f"stopped by a person ({stop})")
    bad = [f"{row.host} {row.result.value}: {row.reason}" for row in summary.rows if row.reason]
    return MASKER.text("; ".join([*parts, *bad[:5]]) + ".")
