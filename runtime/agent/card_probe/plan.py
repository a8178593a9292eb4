"""The container of a probe. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.agent.drivers.driver import LABEL_NODE, LABEL_PREFIX, ContainerPlan
from runtime.agent.hardware.visibility import OWNED_VARIABLES
from runtime.agent.tasks.plan import card_options
from runtime.protocol.heartbeat import Gpu

LABEL_PROBE = LABEL_PREFIX + "card-probe"
"""With the card's uuid. A probe has no label of tasks: it is listed with none, and judged by nobody but the runner."""

LOG_MIB = 1


def probe_plan(
    name: str,
    image: str,
    command: Sequence[str],
    card: Gpu,
    gpus: tuple[Gpu, ...],
    runtimes: tuple[str, ...],
    node_id: str,
) -> ContainerPlan:
    """A container with those cards (see ``owed.given``), given as to a task; without network and volumes."""
    cards = card_options(gpus, runtimes)
    return ContainerPlan(
        name=name,
        image=image,
        labels={LABEL_PROBE: card.uuid, LABEL_NODE: node_id},
        env=dict(cards.env),
        unset=tuple(name for name in OWNED_VARIABLES if name not in cards.env),
        command=list(command) or None,
        network="none",
        log_max_mib=LOG_MIB,
        devices=cards.host,
        gpus=gpus,
    )
