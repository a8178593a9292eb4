"""Whether a container that was made earlier would still get its own cards.

Device files and numbers name cards on this machine as it was then. After a card has dropped out, or the machine was
started anew, the same name may be another card, which is another task's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from runtime.agent.drivers.driver import LABEL_GIVEN
from runtime.agent.hardware.visibility import GIVINGS, container_options, process_options
from runtime.agent.tasks.checks import checked_giving, checked_gpus
from runtime.protocol.states import Driver

if TYPE_CHECKING:
    from runtime.agent.drivers.driver import Facts
    from runtime.agent.tasks.held import Held
    from runtime.agent.tasks.parts import Parts
    from runtime.agent.tasks.records import ClaimRecord


def by_place(record: ClaimRecord) -> bool:
    """Whether its cards were given by what only this machine calls them."""
    return any(card.vendor is None or card.vendor in GIVINGS for card in record.gpus)


def moved(parts: Parts, held: Held, facts: Facts) -> Optional[str]:
    """What its cards are now, where that is not what its container has, in a sentence; None when all is as it was.
    Raises CheckFailed when they cannot be given at all."""
    before = facts.labels.get(LABEL_GIVEN)
    if not before:
        return None
    gpus = checked_gpus(held.record.gpus, parts.snapshot())
    runtimes = () if before.startswith("/") else parts.engine_of(held).facts.runtimes
    decide = process_options if held.record.spec.driver is Driver.PROCESS else container_options
    now = checked_giving(gpus, parts.snapshot(), runtimes, decide).named
    return None if now == before else f"its container was made with {before}, and its cards are {now} on this node now"
