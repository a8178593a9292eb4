"""Getting an image: a few tries within a budget, each ended when it stops moving, permanent errors at once."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import TYPE_CHECKING, Optional

from runtime.agent.drivers.errors import EngineUnavailable, PullCancelled, PullFailed, PullStalled
from runtime.agent.loop import Backoff
from runtime.agent.tasks import room
from runtime.agent.tasks.classify import Conclusion
from runtime.agent.tasks.images import classify_pull_error, engine_line
from runtime.protocol.reasons import CLASS_OF, Reason, ReasonClass
from runtime.protocol.states import Status

if TYPE_CHECKING:
    from runtime.agent.drivers.images import DockerImages, DockerPull
    from runtime.agent.tasks.held import Held
    from runtime.agent.tasks.parts import Parts
    from runtime.protocol.tasks import RegistryAuth

log = logging.getLogger(__name__)

PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 30.0
ROOM_EVERY_S = 2.0


class Puller:
    """Pulls for one claim at a time, in the caller's thread; the budget used is journalled after each try."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._settings = parts.settings

    def pull(self, held: Held, images: DockerImages, image: str, auth: Optional[RegistryAuth]) -> Optional[Conclusion]:
        """None when the image is here, or nobody wants it any more; else how the task ends for lack of it."""
        full = room.before_pull(self._root(held), self._settings.disk_min_free_mib)
        if full is not None:
            return no_room(f"{full} before a pull", images)
        pauses = Backoff(PAUSE_FIRST_S, PAUSE_MAX_S, least_s=PAUSE_FIRST_S / 2)
        last = Conclusion(Status.FAILED, Reason.PULL_TIMEOUT, error=f"no time left to pull {image}")
        while not held.cancelled.is_set() and not self._used_up(held):
            began = time.monotonic()
            wait_s: Optional[float] = None
            try:
                self._try(held, images, image, auth)
                return None
            except PullCancelled:
                return None
            except PullStalled as stalled:
                last = Conclusion(Status.FAILED, Reason.PULL_TIMEOUT, error=_with_tail(stalled.text, stalled.tail))
            except PullFailed as failed:
                verdict = classify_pull_error(failed.text)
                if verdict.reason is Reason.DISK_FULL:
                    return no_room(in_words(image, verdict.reason, failed.text), images)
                last = end_without_image(verdict.reason, in_words(image, verdict.reason, failed.text))
                if verdict.permanent:
                    return last
                wait_s = verdict.wait_s
            except EngineUnavailable as away:
                last = end_without_image(Reason.ENGINE_UNAVAILABLE, str(away))
            finally:
                self._spend(held, time.monotonic() - began)
            log.info("task %s: pull of %s failed: %s", held.record.task_id, image, last.error)
            pause = max(pauses.next(), wait_s or 0.0)
            if self._used_up(held, pause) or held.cancelled.wait(pause):
                break
        return None if held.cancelled.is_set() else last

    def _try(self, held: Held, images: DockerImages, image: str, auth: Optional[RegistryAuth]) -> None:
        left = self._settings.pull_total_s - held.record.pull_spent_s
        pull = images.pull(image, auth, self._settings.pull_stall_s, left)
        held.pull = pull
        name = ("pull", held.name)

        def look() -> None:
            due = pull.overdue(time.monotonic())
            if due is None:
                pull.give_up()
            else:
                self._parts.timers.at(name, due, look)

        self._parts.timers.after(name, min(self._settings.pull_stall_s, left), look)
        watched = self._watch_room(held, pull)
        if held.cancelled.is_set():
            pull.cancel()
        try:
            pull.run()
        finally:
            self._parts.timers.cancel(name)
            self._parts.timers.cancel(watched)
            held.pull = None

    def _used_up(self, held: Held, pause: float = 0.0) -> bool:
        used = held.record
        return (
            used.pull_attempts >= self._settings.pull_attempts
            or used.pull_spent_s + pause >= self._settings.pull_total_s
        )

    def _spend(self, held: Held, seconds: float) -> None:
        held.record = dataclasses.replace(
            held.record,
            pull_attempts=held.record.pull_attempts + 1,
            pull_spent_s=held.record.pull_spent_s + seconds,
        )
        self._parts.journal.save(held.record)

    def _watch_room(self, held: Held, pull: DockerPull) -> tuple[str, str]:
        """A pull must not take the last byte from what runs: it is ended when hardly any room is left. The look is
        a worker's, since a disk may not answer; the name of the timer is returned."""
        name = ("room", held.name)

        def look() -> None:
            full = room.to_work(self._root(held), self._settings.disk_min_free_mib)
            if full is not None:
                pull.stop_for(f"no space left on device soon: {full}")
            elif held.pull is pull:
                again()

        def again() -> None:
            self._parts.timers.after(name, ROOM_EVERY_S, lambda: self._parts.probes.submit(f"room/{held.name}", look))

        again()
        return name

    def _root(self, held: Held) -> Optional[str]:
        return self._parts.engine_of(held).facts.root_dir


_ADVICE = {
    Reason.REGISTRY_AUTH_FAILED: "give the task a registry_auth that may pull it",
    Reason.IMAGE_NOT_FOUND: "check its name and tag, and that it was pushed",
    Reason.IMAGE_NO_PLATFORM: "push it for this node's architecture, or choose another node",
    Reason.IMAGE_PULL_FAILED: "check that this node reaches the registry",
}


def no_room(text: str, images: Optional[DockerImages]) -> Conclusion:
    """Handed back, with what may be removed there. Nothing is removed by itself: it is other people's."""
    spare = images.spare() if images is not None else None
    return end_without_image(Reason.DISK_FULL, f"{text}; {spare.in_words()}" if spare is not None else text)


def in_words(image: str, reason: Reason, engine_text: str) -> str:
    """Which image, what the engine said of it, and what to do."""
    advice = _ADVICE.get(reason)
    return f"{image}: {engine_line(engine_text)}" + (f"; {advice}" if advice else "")


def end_without_image(reason: Reason, text: str) -> Conclusion:
    """A node that cannot get the image hands the task back; a task whose image cannot be had fails."""
    infrastructure = CLASS_OF[reason] is ReasonClass.INFRASTRUCTURE
    return Conclusion(Status.PENDING if infrastructure else Status.FAILED, reason, error=text)


def _with_tail(text: str, tail: tuple[str, ...]) -> str:
    return "\n".join((text, *tail))
