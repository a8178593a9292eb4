"""A task's output: appended by raw byte position, the last :data:`LOG_KEEP_BYTES` an attempt, gaps said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from runtime.protocol.problems import Problem
from runtime.protocol.tasks import LOG_KEEP_BYTES, LogChunk, LogText
from runtime.server.services.tasks import rows
from runtime.server.services.tasks.claims import Reporter
from runtime.server.services.tasks.rows import plain
from runtime.server.store.database import Database, Tx
from runtime.server.store.tables import attempts, task_logs

LONGEST_CHARACTER = 3
"""A byte that is no text becomes the replacement character, which has so many."""


@dataclass(frozen=True)
class Refusal:
    """Why a chunk was not taken: the end that is held, or None when the claim is not the sender's."""

    held_end: int | None


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
        held = tx.execute(
            sa.select(attempts.c.claim_token, attempts.c.node_id).where(
                attempts.c.uid == row["uid"], attempts.c.attempt == chunk.attempt
            )
        ).first()
        if held is None or held.node_id != who.node_id or held.claim_token != chunk.claim_token:
            return Refusal(None)
        end = _held_end(tx.connection, row["uid"], chunk.attempt)
        if chunk.end <= end and _holds(tx.connection, row["uid"], chunk):
            return None
        if chunk.start - chunk.dropped != end:
            return Refusal(end)
        if chunk.end > chunk.start or chunk.dropped:
            tx.execute(
                sa.insert(task_logs).values(
                    uid=row["uid"],
                    attempt=chunk.attempt,
                    start=chunk.start,
                    end=chunk.end,
                    dropped=chunk.dropped,
                    data=plain(chunk.data),
                )
            )
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
    )


def read(connection: sa.Connection, uid: str, attempt: int, *, since: int = 0, tail: int | None = None) -> LogText:
    """What is held of an attempt from raw byte ``since`` on, or its last ``tail`` lines.

    ``start`` above ``since`` says that the beginning is gone. A gap further on is said in the text itself;
    ``dropped`` counts the bytes of both.
    """
    query = sa.select(task_logs).where(task_logs.c.uid == uid, task_logs.c.attempt == attempt, task_logs.c.end > since)
    chunks = list(connection.execute(query.order_by(task_logs.c.start)))
    if not chunks:
        end = _held_end(connection, uid, attempt)
        return LogText(attempt, end, end, "")
    data, start = _from(chunks[0], since)
    pieces, position = [data], chunks[0].end
    dropped = max(0, start - since)
    for chunk in chunks[1:]:
        if chunk.start > position:
            dropped += chunk.start - position
            pieces.append(f"\n[{chunk.start - position} bytes of output are gone here]\n")
        pieces.append(chunk.data)
        position = chunk.end
    text = "".join(pieces)
    if tail is not None:
        lines = text.splitlines(keepends=True)
        text = "".join(lines[max(0, len(lines) - tail) :])
        start = max(start, position - len(text.encode()))
    return LogText(attempt, start, position, text, dropped)


def _from(chunk: Any, wanted: int) -> tuple[str, int]:
    """The text of a chunk from raw byte ``wanted`` on, moved forward to a whole character, and where that is.

    Where bytes were replaced while decoding, text and raw bytes differ in length: then the whole chunk is kept.
    """
    raw = chunk.data.encode()
    if wanted <= chunk.start or len(raw) != chunk.end - chunk.start:
        return chunk.data, chunk.start
    cut = wanted - chunk.start
    while cut < len(raw) and raw[cut] & 0xC0 == 0x80:
        cut += 1
    return raw[cut:].decode(), chunk.start + cut


def _held_end(connection: sa.Connection, uid: str, attempt: int) -> int:
    end = connection.execute(
        sa.select(sa.func.max(task_logs.c.end)).where(task_logs.c.uid == uid, task_logs.c.attempt == attempt)
    ).scalar()
    return int(end or 0)


def _holds(connection: sa.Connection, uid: str, chunk: LogChunk) -> bool:
    same = sa.select(task_logs.c.end).where(
        task_logs.c.uid == uid,
        task_logs.c.attempt == chunk.attempt,
        task_logs.c.start == chunk.start,
        task_logs.c.end == chunk.end,
    )
    return connection.execute(same).first() is not None


def _trim(tx: Tx, uid: str, attempt: int, end: int) -> None:
    tx.execute(
        sa.delete(task_logs).where(
            task_logs.c.uid == uid, task_logs.c.attempt == attempt, task_logs.c.end <= end - LOG_KEEP_BYTES
        )
    )
