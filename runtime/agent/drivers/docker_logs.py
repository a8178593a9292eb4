"""Reading a container's output from the engine: how much is asked for, and what it costs at most."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Callable, Optional

from runtime.agent.drivers.docker_answers import reading
from runtime.agent.drivers.engine import DockerEngine
from runtime.agent.drivers.log_frames import LOOK_BACK, Entry, Look, Place, entries, look_at, pieces_after, rotates_at
from runtime.agent.drivers.output import LogLost, LogPiece, LogRest

OnOpen = Callable[[Callable[[], None]], None]

QUICK_FIRST = 256
QUICK_FRAMES = 16384
QUICK_BYTES = 4 << 20
"""What a look that is not thorough reads at first, and at most: in frames, and about in bytes."""

_STEADY_S = 300.0
_CALL_S = 10.0


class DockerLogs:
    """The output of an engine's containers, by the calls of :mod:`runtime.agent.drivers.output`."""

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine

    def rest(self, container_id: str, limit_bytes: int, after: str, thorough: bool) -> LogRest:
        place = Place.read(after)

        def look(frames: Optional[int], give_up_at: Optional[int] = None) -> Look:
            found = self._read(container_id, "all" if frames is None else str(frames))
            return look_at(found, after, limit_bytes, frames, rotation, give_up_at)

        def rotation() -> Optional[int]:
            document = self._engine.call("GET", f"/containers/{container_id}/json", timeout_s=_CALL_S)
            with reading("a container"):
                return rotates_at((document.get("HostConfig") or {}).get("LogConfig") or {})

        if place is not None and place.number > 1:  # how many frames of that line are before the last few?
            return look(None).rest
        frames = QUICK_FRAMES
        if place is not None:
            few = look(QUICK_FIRST)
            if few.rest.whole:
                return few.rest
            frames = max(QUICK_FIRST, min(QUICK_FRAMES, QUICK_FIRST * QUICK_BYTES // max(1, few.file_size)))
        some = look(frames)
        if some.rest.whole or some.complete or not thorough:
            return some.rest
        if place is not None:
            return look(None).rest
        # The beginning counts. Where it may be gone, the rest of what is left proves nothing.
        give_up_at = rotation()
        everything = look(None, give_up_at) if give_up_at is not None else some
        return everything.rest if everything.complete else some.rest

    def follow(self, container_id: str, after: str, on_open: OnOpen) -> Iterator[LogPiece]:
        place = Place.read(after)
        if place is not None and place.number > 1:
            raise LogLost("in the middle of a line of many frames, which only a look at the whole line can tell apart")
        opened = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"
        return pieces_after(
            self._stream(container_id, "all" if place is None else str(LOOK_BACK), on_open), after, opened
        )

    def _read(self, container_id: str, tail: str) -> Iterator[Entry]:
        return entries(self._logs(container_id, {"tail": tail}, lambda close: None, _CALL_S))

    def _stream(self, container_id: str, tail: str, on_open: OnOpen) -> Iterator[Entry]:
        return entries(self._logs(container_id, {"tail": tail, "follow": "1"}, on_open, _STEADY_S))

    def _logs(self, container_id: str, more: dict[str, str], on_open: OnOpen, silence_s: float) -> Iterator[bytes]:
        params = {"stdout": "1", "stderr": "1", "timestamps": "1", **more}
        return self._engine.stream(
            f"/containers/{container_id}/logs", params=params, on_open=on_open, timeout_s=silence_s
        )
