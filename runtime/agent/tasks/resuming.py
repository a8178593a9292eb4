"""Where a task goes on from: looked up before its container is made, and told to the server when it is."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from runtime.agent.checkpoints import Look, find_newest
from runtime.agent.link.errors import Refused, Unavailable
from runtime.agent.loop import Backoff
from runtime.agent.tasks.checks import CheckFailed
from runtime.protocol.paths import is_within, target_name
from runtime.protocol.reasons import Reason
from runtime.protocol.tasks import CheckpointResume, RejectedCheckpoint, TaskSpec, Volume

if TYPE_CHECKING:
    from runtime.agent.tasks.held import Held
    from runtime.agent.tasks.mounting import Mounting
    from runtime.agent.tasks.parts import Parts
    from runtime.agent.tasks.records import ClaimRecord

log = logging.getLogger(__name__)

TOLD_LIMIT = 20
"""Rejected candidates that are told: the newest, which somebody may ask about."""
TELL_FIRST_S, TELL_MAX_S = 1.0, 20.0


@dataclass(frozen=True)
class Place:
    """Where a task's checkpoints are: volume ``number``, the path ``inside`` it, and the names there that the task
    sees another of its volumes at."""

    number: int
    inside: str
    hidden: frozenset[str]


def place_of(path: str, volumes: Sequence[Volume]) -> Optional[Place]:
    """The innermost volume around ``path``, as the task sees it; None: it is in none. Pure."""
    path = target_name(path)
    targets = [target_name(volume.container) for volume in volumes]
    around = [number for number, target in enumerate(targets) if is_within(path, target)]
    if not around:
        return None
    number = max(around, key=lambda one: len(targets[one]))
    covered = frozenset(
        posixpath.relpath(target, path).split("/")[0]
        for target in targets
        if target != path and is_within(target, path)
    )
    return Place(number, posixpath.relpath(path, targets[number]), covered)


def conclusion(record: ClaimRecord, look: Look) -> CheckpointResume:
    """What the server is told. Pure."""
    found = look.found
    return CheckpointResume(
        attempt=record.key.attempt,
        claim_token=record.claim_token,
        found=found is not None,
        path=found.path if found is not None else None,
        framework=found.framework if found is not None else None,
        step=found.step if found is not None else None,
        rejected=[RejectedCheckpoint(one.path, one.reason) for one in look.rejected[:TOLD_LIMIT]],
    )


class Resuming:
    """Looks on the worker that has the claim, tells on those for reports: no start waits for the server."""

    def __init__(self, parts: Parts, mounting: Mounting) -> None:
        self._parts = parts
        self._mounting = mounting

    def look(self, held: Held, spec: TaskSpec) -> Optional[Look]:
        """The newest complete checkpoint, by way of the volumes as they are held; None when none is asked for.

        Raises CheckFailed when it cannot be told now: from scratch is only right when there is nothing to go on from.
        """
        if spec.checkpoint_path is None or spec.resume_from_checkpoint is not None:
            return None
        place = place_of(spec.checkpoint_path, spec.volumes)
        if place is None:
            text = f"checkpoint_path {spec.checkpoint_path!r} is in none of the task's volumes"
            raise CheckFailed(Reason.VOLUME_REJECTED, text)
        try:
            with self._mounting.opened(held, place.number) as handle:
                look = find_newest(
                    handle,
                    place.inside,
                    spec.checkpoint_framework,
                    seen_as=target_name(spec.checkpoint_path),
                    hidden=place.hidden,
                )
        except OSError as error:
            text = f"the checkpoints in {spec.checkpoint_path} cannot be looked at: {error.strerror or error}"
            raise CheckFailed(Reason.START_FAILED, text) from None
        except ValueError as error:  # a server that knows more frameworks than this agent
            raise CheckFailed(Reason.PROFILE_REJECTED, f"checkpoint_framework: {error}") from None
        found = look.found
        words = f"goes on from {found.path}" if found is not None else "starts from scratch"
        log.info("task %s (attempt %d) %s", held.record.task_id, held.key.attempt, words)
        return look

    def tell(self, held: Held, look: Look) -> None:
        """Bring it to the server in the background, as long as that takes."""
        self._later(held.record, conclusion(held.record, look), Backoff(TELL_FIRST_S, TELL_MAX_S))

    def _later(self, record: ClaimRecord, told: CheckpointResume, pauses: Backoff) -> None:
        name = f"{record.key.uid}/{record.key.attempt}/checkpoint"
        self._parts.reports.submit(name, lambda: self._send(name, record, told, pauses))

    def _send(self, name: str, record: ClaimRecord, told: CheckpointResume, pauses: Backoff) -> None:
        client = self._parts.client
        try:
            if client.control_plane_id not in (None, record.control_plane_id):
                raise Unavailable("another control plane answers")
            client.checkpoint_resume(record.task_id, told)
        except Unavailable as error:
            self._again(name, record, told, pauses, error.retry_after)
        except Refused as refused:
            if refused.again_s is not None:  # the key's refusal says nothing of this
                self._again(name, record, told, pauses, refused.again_s)
                return
            log.warning("task %s: the server does not take from where it goes on: %s", record.task_id, refused)

    def _again(
        self, name: str, record: ClaimRecord, told: CheckpointResume, pauses: Backoff, least_s: Optional[float]
    ) -> None:
        pause = max(pauses.next(), least_s or 0.0)
        self._parts.timers.after(("checkpoint", name), pause, lambda: self._later(record, told, pauses))
