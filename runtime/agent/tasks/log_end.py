"""How far the server holds a log, and what the driver still has behind that."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from runtime.agent.drivers.output import LogRest
from runtime.agent.link.errors import Refused
from runtime.agent.tasks.log_buffer import Chunk, LogBuffer
from runtime.protocol.tasks import LOG_KEEP_BYTES, LogChunk

if TYPE_CHECKING:
    from runtime.agent.tasks.held import Held
    from runtime.agent.tasks.parts import Parts


class Moved(Exception):
    """The server holds this log up to another place than we thought."""


class End(NamedTuple):
    """How far a log goes: as a position, and as the driver's mark (``""`` where it is not known)."""

    position: int = 0
    mark: str = ""


class ServerEnd:
    """What the server holds of one attempt's log.

    Known for certain only once the server has refused a chunk for its offset: before that, nothing is assumed to be
    there. A chunk says by itself where it belongs, so that one which was made before the end moved is refused, and
    never taken for what comes next.
    """

    def __init__(self, parts: Parts, held: Held) -> None:
        self._parts = parts
        self._held = held
        self.end = End()

    def send(self, chunk: Chunk) -> None:
        """Raises Moved (the end is what the server said then), LinkError."""
        record = self._held.record
        body = LogChunk(
            attempt=record.key.attempt,
            claim_token=record.claim_token,
            start=chunk.end - len(chunk.data),
            end=chunk.end,
            data=chunk.data.decode("utf-8", "replace").replace("\0", ""),
            dropped=chunk.dropped,
            gap=chunk.gap,
            mark=chunk.mark or None,
        )
        try:
            self._parts.client.post_logs(record.task_id, body)
        except Refused as refused:
            members = refused.problem.members
            if refused.problem.code != "log_offset" or not isinstance(members.get("held_end"), int):
                raise
            self.end = End(members["held_end"], str(members.get("held_mark") or ""))
            raise Moved from None
        self.end = End(chunk.end, chunk.mark)

    def catch_up(self, limit_bytes: int, thorough: bool) -> tuple[LogBuffer, str]:
        """What the driver still has behind this end, and the place behind that. Raises DriverError."""
        record, end = self._held.record, self.end
        rest = self._parts.driver_of(self._held).log_rest(
            record.container_id or "", limit_bytes, end.mark, thorough or (end.position > 0 and not end.mark)
        )
        buffer = LogBuffer(LOG_KEEP_BYTES, end.position)
        put(buffer, rest, end.position if not end.mark else 0)
        return buffer, rest.mark


def put(buffer: LogBuffer, rest: LogRest, known: int = 0) -> None:
    """The rest behind a place, and what of it is gone. ``known``: so many bytes from the beginning are the server's
    already, in a log whose place was not kept."""
    data, skipped = rest.data, rest.size - len(rest.data)
    if known:
        # Counted from the beginning both begin at the same byte; where that is gone nobody can tell what is new.
        data = data[max(0, known - skipped) :] if rest.whole else b""
        skipped = max(0, skipped - known) if rest.whole else 0
    buffer.skip(skipped, not rest.whole)
    buffer.add(data, lambda size: rest.mark if size == len(data) else "")
