"""``heterofleet events``."""

from __future__ import annotations

from typing import Any, Optional

import click

from runtime.cli import show
from runtime.cli.context import Invocation, remote
from runtime.cli.output import Column, emit, print_table, say
from runtime.protocol.nodes import EventKind
from runtime.protocol.routes import EVENTS

PAGE = 100
"""What the control plane gives at once where no limit is asked for."""

COLUMNS = (
    Column("ID", lambda e: show.text(e.get("id")), keep=True, right=True),
    Column("TIME", lambda e: show.clock(e.get("time")), keep=True),
    Column("KIND", lambda e: show.text(e.get("kind")), keep=True),
    Column("ABOUT", lambda e: show.text(e.get("task_id") or e.get("node_id") or e.get("gpu_uuid")), keep=True),
    Column("DETAIL", lambda e: _detail(e), wrap=True),
)


@click.command()
@click.option("--after", type=click.IntRange(0), metavar="ID", help="Only events after this id.")
@click.option("--node", "node_id", metavar="NODE", help="Only events of this node.")
@click.option("--task", "task_id", metavar="TASK", help="Only events of this task.")
@click.option("--kind", type=click.Choice([kind.value for kind in EventKind]), metavar="KIND", help="Only this kind.")
@click.option("--limit", type=click.IntRange(1, 1000), help="At most this many.")
@remote
def events(
    call: Invocation,
    after: Optional[int],
    node_id: Optional[str],
    task_id: Optional[str],
    kind: Optional[str],
    limit: Optional[int],
) -> None:
    """What happened on the fleet, oldest first."""
    query = {"after": after, "node": node_id, "task": task_id, "kind": kind, "limit": limit}
    answer = call.client.get(EVENTS, query)
    emit(answer, call.output, _table)
    found = answer.body.get("events") or []
    if len(found) >= (limit or PAGE):
        say(f"there may be more: --after {found[-1].get('id')}")


def _detail(event: Any) -> str:
    """What happened, with the card that it happened to: whole, to be copied into `gpus why`."""
    text, card = show.text(event.get("detail") or event.get("code")), event.get("gpu_uuid")
    return text if not card or card in text else f"card {card}: {text}"


def _table(body: Any) -> None:
    print_table(COLUMNS, body.get("events") or [], "no such events")
