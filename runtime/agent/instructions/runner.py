"""Instructions: pulled, claimed with a token, written down before they are begun, done, reported.

One that is delivered twice returns its recorded result; one that was begun and never ended (the agent went down
in between) is reported as uncertain, with what is there now.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runtime.agent.instructions.images import ImageChannel, InstructionFailed
from runtime.agent.link.errors import LinkError, Refused
from runtime.agent.link.retry import RetryPolicy, retrying
from runtime.agent.loop import Backoff, Loop
from runtime.agent.tasks.claim import new_claim_token
from runtime.agent.tasks.pool import Pool
from runtime.agent.tasks.timers import Timers
from runtime.agent.tasks.turn import REFUSED_PAUSE_S
from runtime.protocol.codec import WireError, decode
from runtime.protocol.instructions import Channel, ImageRequest, Instruction, InstructionStatus, InstructionUpdate

if TYPE_CHECKING:
    from runtime.agent.drivers.images import DockerImages
    from runtime.agent.link.client import ServerClient
    from runtime.agent.link.identity import Identity
    from runtime.agent.tasks.journal import Journal

log = logging.getLogger(__name__)

AT_ONCE = 5
WORKERS = 2
STALL_S = 300.0
INTERVAL_S = 5.0
TRIES = RetryPolicy()
CLAIMED, BEGUN, ENDED, TOLD = "claimed", "begun", "ended", "told"


class InstructionRunner:
    """Runs the channels of this node. ``wake`` says which may hold something."""

    def __init__(self, client: ServerClient, images: DockerImages, journal: Journal, identity: Identity) -> None:
        self._client = client
        self._journal = journal
        self._identity = identity
        self._timers = Timers()
        self._images = ImageChannel(images, self._timers, STALL_S)
        self._pool = Pool("instruction", WORKERS)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._wanted: set[Channel] = set()
        self._under_way: set[str] = set()
        self._again: dict[str, tuple[float, dict[str, Any]]] = {}
        self.loop = Loop("instructions", INTERVAL_S, self._round, backoff=Backoff(1.0, 20.0))

    def start(self) -> None:
        """Report first what ended before a restart, and what was begun and never ended."""
        self._timers.start()
        for request_id, entry in self._journal.instructions(Channel.IMAGE.value).items():
            if entry["state"] != TOLD:
                self._submit(request_id, entry)
        self.loop.start()

    def wake(self, channels: Sequence[str]) -> None:
        """``channels``: names of channels (``images`` or ``image``); others are left to who knows them."""
        with self._lock:
            self._wanted |= {Channel.IMAGE for name in channels if name.rstrip("s") == Channel.IMAGE.value}
        self.loop.wake()

    def stop(self) -> None:
        self._stop.set()
        self.loop.stop()
        self._timers.stop()
        self._pool.stop(0.0)

    def _round(self) -> None:
        now = time.monotonic()
        with self._lock:
            wanted, self._wanted = self._wanted, set()
            due = {name: entry for name, (moment, entry) in self._again.items() if moment <= now}
            for name in due:
                del self._again[name]
        for name, entry in due.items():
            self._submit(name, entry)
        for channel in wanted:
            try:
                found = self._client.instructions(channel, AT_ONCE)
            except Exception:
                with self._lock:
                    self._wanted.add(channel)
                raise
            for instruction in found:
                self._take(instruction)

    def _take(self, instruction: Instruction) -> None:
        channel = Channel.IMAGE.value
        entry = self._journal.instruction(channel, instruction.id)
        if entry is None:
            entry = {"state": CLAIMED, "token": new_claim_token(), "request": instruction.request}
            self._journal.save_instruction(channel, instruction.id, entry)
        self._submit(instruction.id, entry)

    def _submit(self, request_id: str, entry: dict[str, Any]) -> None:
        with self._lock:
            if request_id in self._under_way:
                return
            self._under_way.add(request_id)

        def work() -> None:
            pause: float | None = None
            try:
                self._do(request_id, entry)
            except (LinkError, OSError, sqlite3.Error) as error:
                # What is claimed here is offered to nobody any more: it goes on from us, or not at all.
                pause = REFUSED_PAUSE_S if isinstance(error, Refused) else 0.0
                log.warning("image request %s: %s; trying again", request_id, error)
            finally:
                with self._lock:
                    self._under_way.discard(request_id)
                    if pause is not None:
                        self._again[request_id] = (time.monotonic() + pause, entry)

        self._pool.submit(request_id, work)

    def _do(self, request_id: str, entry: dict[str, Any]) -> None:
        if entry["state"] in (ENDED, TOLD):
            self._tell(request_id, entry)
            return
        begun_before = entry["state"] == BEGUN
        if not begun_before and not self._claim(request_id, entry):
            return
        try:
            request = decode(ImageRequest, entry["request"])
        except WireError as error:
            self._end(request_id, entry, InstructionStatus.FAILED, None, f"the request has another shape: {error}")
            return
        if begun_before:
            self._end(request_id, entry, *self._uncertain(request))
            return
        self._save(request_id, entry, state=BEGUN)
        try:
            result = self._images.do(request_id, request)
        except InstructionFailed as failed:
            self._end(request_id, entry, InstructionStatus.FAILED, None, str(failed))
            return
        self._end(request_id, entry, InstructionStatus.SUCCEEDED, result, None)

    def _uncertain(self, request: ImageRequest) -> tuple[InstructionStatus, dict[str, Any] | None, str | None]:
        """It was begun, and the agent went down: what is there now says how it stands."""
        try:
            now = self._images.now(request)
        except Exception as error:
            return InstructionStatus.FAILED, {"uncertain": True}, f"the agent restarted while it ran: {error}"
        if request.op == "check" or now["present"]:
            return InstructionStatus.SUCCEEDED, {**now, "uncertain": True}, None
        return InstructionStatus.FAILED, {**now, "uncertain": True}, "the agent restarted while it ran"

    def _claim(self, request_id: str, entry: dict[str, Any]) -> bool:
        update = self._update(entry, InstructionStatus.PENDING, InstructionStatus.RUNNING)
        try:
            self._send(request_id, update)
        except Refused as refused:
            if refused.problem.status not in (404, 409):
                raise  # a wrong key, a node that is not bound: nothing is known of the request
            if refused.problem.members.get("claim_token_matches") is not True:
                log.info("image request %s is not ours: %s", request_id, refused)
                self._save(request_id, entry, state=TOLD)
                return False
        return True

    def _end(
        self,
        request_id: str,
        entry: dict[str, Any],
        status: InstructionStatus,
        result: dict[str, Any] | None,
        error: str | None,
    ) -> None:
        self._save(request_id, entry, state=ENDED, status=status.value, result=result, error=error)
        self._tell(request_id, entry)

    def _tell(self, request_id: str, entry: dict[str, Any]) -> None:
        if "status" not in entry:
            return
        update = self._update(entry, InstructionStatus.RUNNING, InstructionStatus(entry["status"]))
        try:
            self._send(request_id, update)
        except Refused as refused:
            if refused.problem.status not in (404, 409):
                raise
        self._save(request_id, entry, state=TOLD)

    def _update(self, entry: dict[str, Any], source: InstructionStatus, target: InstructionStatus) -> InstructionUpdate:
        return InstructionUpdate(
            node_id=self._identity.node_id,
            claim_token=entry["token"],
            from_status=source,
            status=target,
            result=entry.get("result"),
            error=entry.get("error"),
        )

    def _send(self, request_id: str, update: InstructionUpdate) -> None:
        retrying(lambda: self._client.update_instruction(Channel.IMAGE, request_id, update), TRIES, self._stop)

    def _save(self, request_id: str, entry: dict[str, Any], **changes: Any) -> None:
        """On disk first: what could not be written down has not happened."""
        self._journal.save_instruction(Channel.IMAGE.value, request_id, {**entry, **changes})
        entry.update(changes)
