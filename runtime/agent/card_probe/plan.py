"""The container of a probe. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.agent.drivers.driver import LABEL_NODE, LABEL_PREFIX, ContainerPlan
from runtime.agent.hardware.giving.description import CardOptions
from runtime.agent.hardware.visibility import OWNED_VARIABLES
from runtime.agent.tasks.plan import engine_options
from runtime.protocol.hardware import Gpu

LABEL_PROBE = LABEL_PREFIX + "card-probe"
"""With the card's uuid. A probe has no label of tasks: it is listed with none, and judged by nobody but the runner."""

LOG_MIB = 1


def probe_plan(
    name: str,
    image: str,
    command: Sequence[str],
    card: Gpu,
    gpus: tuple[Gpu, ...],
    options: CardOptions,
    node_id: str,
) -> ContainerPlan:
    """A container for the card, which is given ``gpus`` by ``options``; without network and volumes."""
    return ContainerPlan(
        name=name,
        image=image,
        labels={LABEL_PROBE: card.uuid, LABEL_NODE: node_id},
        env=dict(options.environment),
        unset=tuple(name for name in OWNED_VARIABLES if name not in options.environment),
        command=list(command) or None,
        network="none",
        log_max_mib=LOG_MIB,
        host_config=engine_options(options),
        files=options.files,
        shown=options.mounts,
        gpus=gpus,
    )
