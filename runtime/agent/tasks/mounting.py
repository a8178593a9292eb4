"""The volumes of a claim, from the check to the running container: held, compared, let go.

Held just before the container is made. Compared when it is made, when it runs, and admitted anew before every
further start, since the engine looks its sources up anew each time. Let go as soon as the container runs and was
looked at: it has its own mounts then, and a place that stays is one more way to the customer's files for whoever
clears up /run.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from runtime.agent.drivers.driver import Mount
from runtime.agent.drivers.errors import DriverError
from runtime.agent.hardware.visibility import MOUNTED
from runtime.agent.tasks.checks import CheckFailed, fence_of
from runtime.agent.tasks.pins import MARK_NS, PinFailed
from runtime.agent.tasks.volumes import Fence, VolumeRejected, numeric_owner
from runtime.protocol.paths import target_name
from runtime.protocol.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from runtime.agent.drivers.driver import Facts
    from runtime.agent.tasks.held import Held
    from runtime.agent.tasks.parts import Parts
    from runtime.agent.tasks.records import ClaimRecord, Key

log = logging.getLogger(__name__)

SWAPPED = "a mount source was swapped after the check"
ELSEWHERE = (
    "the engine does not see the folders of this machine as the agent does (it runs elsewhere, or in a mount "
    "namespace of its own), so nothing can be mounted safely"
)
NOT_LOCAL = "volumes need an engine on this machine, at a unix socket; docker_host is {host}"


class Mounting:
    """Works on the worker that has the claim."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def hold(self, held: Held) -> tuple[Mount, ...]:
        """Admit the claim's volumes anew and hold them; what was found goes into the journal with the next step.

        After a crash before that the claim's record names nothing, and all is held anew. Raises CheckFailed.
        """
        parts, record = self._parts, held.record
        volumes = record.spec.volumes
        if not volumes:
            return ()
        host = parts.settings.docker_host
        if host is not None and not host.startswith("unix://"):
            raise CheckFailed(Reason.ENGINE_UNAVAILABLE, NOT_LOCAL.format(host=host.partition("://")[0] + "://..."))
        try:
            sources = parts.pins.pin(record.key, volumes, self._fence(held), numeric_owner(record.spec.user))
        except VolumeRejected as error:
            raise CheckFailed(Reason.VOLUME_REJECTED, str(error)) from None
        except PinFailed as error:
            raise CheckFailed(Reason.START_FAILED, str(error)) from None
        found = tuple((source.path, source.device, source.inode) for source in sources)
        held.record = dataclasses.replace(held.record, mounts=found)
        return tuple(
            Mount(place, volume.container, volume.read_only) for place, volume in zip(self._places(record), volumes)
        )

    @contextmanager
    def opened(self, held: Held, number: int) -> Iterator[int]:
        """A handle (O_PATH) on a volume that :meth:`hold` holds: what the container is going to see. Raises OSError."""
        place = self._parts.pins.place(held.key, number)
        handle = os.open(place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield handle
        finally:
            os.close(handle)

    def stands(self, held: Held) -> bool:
        """Before each start of a container that is there: whether it would get what was admitted.

        Where nothing is held any more (it ran before, or the machine was restarted) the volumes are admitted again.
        False: the container was made with other sources and has to be made anew. Raises CheckFailed.
        """
        parts, record = self._parts, held.record
        if not record.spec.volumes or record.container_id is None:
            return True
        if not record.mounts or not parts.pins.exists(record.key):
            sources = parts.driver_of(held).inspect(record.container_id).sources
            # Beside the volumes there may be what the agent shows of the cards' driver.
            if tuple(source for source in sources if source not in MOUNTED) != self._places(record):
                return False
            parts.write(held, mounts=())  # what is written there is of its former run
            self.hold(held)
            parts.write(held)
        if not parts.pins.holds(record.key, held.record.mounts):
            raise CheckFailed(Reason.VOLUME_REJECTED, SWAPPED)
        try:
            parts.pins.refuse_hidden(record.key, record.spec.volumes, self._fence(held))
        except VolumeRejected as error:
            raise CheckFailed(Reason.VOLUME_REJECTED, str(error)) from None
        first = target_name(record.spec.volumes[0].container)
        if parts.driver_of(held).changed_ns(record.container_id, first) == MARK_NS:
            raise CheckFailed(Reason.ENGINE_UNAVAILABLE, ELSEWHERE)
        return True

    def swapped(self, held: Held, facts: Facts) -> bool:
        """After a start: whether the container has something else than what was admitted. In doubt it has not."""
        parts, record = self._parts, held.record
        if not record.mounts or not parts.pins.exists(record.key):
            return False
        if not parts.pins.holds(record.key, record.mounts):
            return True
        try:
            if not facts.pid or parts.pins.seen_by(facts.pid, record.key, record.mounts, self._targets(record)):
                return False
            # A program may be over by now, and its number another's: only what still runs was really looked at.
            after = parts.driver_of(held).inspect(facts.id)
        except (OSError, DriverError) as error:
            log.debug("task %s: what its container has mounted cannot be seen: %s", record.task_id, error)
            return False
        return after.running and after.pid == facts.pid

    def release(self, key: Key) -> None:
        """The container runs and was looked at, or it is gone."""
        self._parts.pins.release(key)

    def sweep(self, claims: Iterable[Key], containers: Iterable[Key]) -> None:
        """Let go of what nothing needs. ``containers``: every container on the engine, from a list that is known
        to be whole."""
        self._parts.pins.sweep({*claims, *containers})

    def _places(self, record: ClaimRecord) -> tuple[str, ...]:
        return tuple(self._parts.pins.place(record.key, number) for number in range(len(record.spec.volumes)))

    @staticmethod
    def _targets(record: ClaimRecord) -> list[str]:
        return [target_name(volume.container) for volume in record.spec.volumes]

    def _fence(self, held: Held) -> Fence:
        """Around what the engine keeps for itself as well, wherever that was moved to."""
        return fence_of(self._parts.settings, self._parts.engine_of(held).known().root_dir)
