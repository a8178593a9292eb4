"""A task's output: appended by raw byte position, the last :data:`LOG_KEEP_BYTES` an attempt, gaps said.

A row is a stretch of output without a gap in it. Short chunks are joined to the row before, so that a program that
prints a dot a second for days leaves no row for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from runtime.protocol.problems import Problem
from runtime.protocol.tasks import LOG_KEEP_BYTES, LogChunk, LogText
from runtime.protocol.times import from_wire, to_wire
from runtime.server.services.tasks import rows
from runtime.server.services.tasks.claims import Reporter, attempt_of
from runtime.server.services.tasks.rows import plain
from runtime.server.store.database import Database
from runtime.server.store.tables import task_logs, tasks
from runtime.server.store.transaction import Tx

LONGEST_CHARACTER = 3
"""A byte that is no text becomes the replacement character, which has so many."""

ROW_BYTES = 16 * 1024
"""Below this a row takes up the chunk that follows it."""


@dataclass(frozen=True)
class Refusal:
    """Why a chunk was not taken: the end that is held (and its mark), or None when the claim is not the sender's."""

    held_end: int | None
    held_mark: str | None = None


def append(db: Database, who: Reporter, task_id: str, chunk: LogChunk) -> None:
    """Keep ``chunk``. Raises Problem task_not_found, state_conflict, log_offset, bad_parameter.

    A chunk that was taken before (its answer was lost) is taken again without effect.
    """
    if chunk.end < chunk.start or chunk.dropped > chunk.start or (chunk.end == chunk.start and chunk.data):
        raise Problem("bad_parameter", f"from {chunk.start}, to {chunk.end} and dropped {chunk.dropped} do not fit.")
    size = len(chunk.data.encode())
    if size > LONGEST_CHARACTER * (chunk.end - chunk.start) or size > LONGEST_CHARACTER * LOG_KEEP_BYTES:
        # What is kept is counted by positions: text that they do not cover would be kept without end.
        raise Problem(
            "bad_parameter",
            f"{size} bytes of text for the {chunk.end - chunk.start} bytes from {chunk.start} to {chunk.end}; a chunk "
            f"is the text of its range, at most {LOG_KEEP_BYTES} bytes.",
        )

    def change(tx: Tx) -> Refusal | None:
        row = rows.must_find_locked(tx, task_id)
        if attempt_of(tx, row["uid"], chunk.attempt, who, chunk.claim_token) is None:
            return Refusal(None)
        last = _last(tx.connection, row["uid"], chunk.attempt)
        end = 0 if last is None else last.end
        if chunk.end <= end and not chunk.gap and _holds(tx.connection, row["uid"], chunk):
            return None
        if chunk.start - chunk.dropped != end:
            return Refusal(end, None if last is None else last.mark)
        if chunk.end > chunk.start or chunk.dropped:
            _keep(tx, row["uid"], chunk, last)
            _trim(tx, row["uid"], chunk.attempt, chunk.end)
        return None

    refusal = db.write(change)
    if refusal is None:
        return
    if refusal.held_end is None:
        raise Problem(
            "state_conflict",
            f"Attempt {chunk.attempt} of task {task_id} is not claimed by node {who.node_id} with this token.",
            attempt=chunk.attempt,
            claim_token_matches=False,
        )
    raise Problem(
        "log_offset",
        f"The log is held up to byte {refusal.held_end}; a chunk from {chunk.start} with {chunk.dropped} dropped "
        "before it does not follow.",
        held_end=refusal.held_end,
        held_mark=refusal.held_mark,
    )


def read(connection: sa.Connection, uid: str, attempt: int, *, since: int = 0, tail: int | None = None) -> LogText:
    """What is held of an attempt from raw byte ``since`` on, or its last ``tail`` lines.

    ``start`` above ``since`` says that the beginning is gone. A gap further on, and one whose size nobody knows, is
    said in the text itself; ``dropped`` counts the bytes that are known to be gone.
    """
    query = sa.select(task_logs).where(task_logs.c.uid == uid, task_logs.c.attempt == attempt, task_logs.c.end > since)
    chunks = list(connection.execute(query.order_by(task_logs.c.start)))
    if not chunks:
        last = _last(connection, uid, attempt)
        end = 0 if last is None else last.end
        return LogText(attempt, end, end, "")
    data, start = _from(chunks[0], max(since, chunks[-1].end - LOG_KEEP_BYTES))
    pieces, position = [data], chunks[0].end
    dropped = max(0, start - since)
    if chunks[0].gap and start == chunks[0].start:
        pieces.insert(0, _said(0, unknown=True))
    for chunk in chunks[1:]:
        if chunk.start > position or chunk.gap:
            dropped += chunk.start - position
            pieces.append("\n" + _said(chunk.start - position, unknown=chunk.gap))
        pieces.append(chunk.data)
        position = chunk.end
    text = "".join(pieces)
    if tail is not None:
        lines = text.splitlines(keepends=True)
        text = "".join(lines[max(0, len(lines) - tail) :])
        start = max(start, position - len(text.encode()))
    return LogText(attempt, start, position, text, dropped)


def tell_other_processes(db: Database, row: rows.Row, now: datetime, lasts_s: float) -> None:
    """A node's beat may go to another process than its reader's request: that one reads it with the task's row. Written
    once in half of ``lasts_s``; with SQLite there is no other process."""
    if db.is_sqlite or (
        row["log_until"] is not None and from_wire(row["log_until"]) > now + timedelta(seconds=lasts_s / 2)
    ):
        return

    def change(tx: Tx) -> None:
        until = to_wire(now + timedelta(seconds=lasts_s))
        tx.execute(sa.update(tasks).where(tasks.c.uid == row["uid"]).values(log_until=until))
        tx.touch_task(row["uid"])

    db.write(change)


def _said(size: int, *, unknown: bool) -> str:
    """A gap as a line for the reader."""
    if not unknown:
        return f"[{size} bytes of output are gone here]\n"
    return f"[output is gone here: {f'{size} bytes or more' if size else 'how much is not known'}]\n"


def _from(chunk: Any, wanted: int) -> tuple[str, int]:
    """The text of a chunk from raw byte ``wanted`` on, moved forward to a whole character, and where that is.

    Where bytes were replaced while decoding, text and raw bytes differ in length: then the whole chunk is kept.
    """
    raw = chunk.data.encode()
    if wanted <= chunk.start or not _exact(chunk.data, chunk):
        return chunk.data, chunk.start
    cut = wanted - chunk.start
    while cut < len(raw) and raw[cut] & 0xC0 == 0x80:
        cut += 1
    return raw[cut:].decode(), chunk.start + cut


def _last(connection: sa.Connection, uid: str, attempt: int) -> Any:
    """The newest row of an attempt, None when nothing of it is held."""
    query = sa.select(task_logs).where(task_logs.c.uid == uid, task_logs.c.attempt == attempt)
    return connection.execute(query.order_by(task_logs.c.start.desc()).limit(1)).first()


def _holds(connection: sa.Connection, uid: str, chunk: LogChunk) -> bool:
    """Whether all of the chunk is in one row: it was taken before, and its answer was lost."""
    same = sa.select(task_logs.c.end).where(
        task_logs.c.uid == uid,
        task_logs.c.attempt == chunk.attempt,
        task_logs.c.start <= chunk.start,
        task_logs.c.end >= chunk.end,
    )
    return connection.execute(same).first() is not None


def _keep(tx: Tx, uid: str, chunk: LogChunk, last: Any) -> None:
    """As a row of its own, or behind what the last one has."""
    data = plain(chunk.data) or ""
    exact = last is not None and _exact(last.data, last) and _exact(data, chunk)
    if not exact or chunk.gap or chunk.dropped or last.end - last.start >= ROW_BYTES:
        values = {"start": chunk.start, "end": chunk.end, "dropped": chunk.dropped, "gap": chunk.gap}
        tx.execute(
            sa.insert(task_logs).values(uid=uid, attempt=chunk.attempt, data=data, mark=chunk.mark or None, **values)
        )
        return
    tx.execute(
        sa.update(task_logs)
        .where(task_logs.c.uid == uid, task_logs.c.attempt == chunk.attempt, task_logs.c.start == last.start)
        .values(end=chunk.end, data=last.data + data, mark=chunk.mark or None)
    )


def _exact(data: str, span: Any) -> bool:
    """Whether text and raw bytes have one length: then a place in one is a place in the other."""
    return len(data.encode()) == int(span.end - span.start)


def _trim(tx: Tx, uid: str, attempt: int, end: int) -> None:
    tx.execute(
        sa.delete(task_logs).where(
            task_logs.c.uid == uid, task_logs.c.attempt == attempt, task_logs.c.end <= end - LOG_KEEP_BYTES
        )
    )
