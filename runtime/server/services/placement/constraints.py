"""The constraints of placement, each under a stable code with a sentence: for the decision and for its reasons.

``NODE`` constraints look at the node, ``LEFT`` at what is left of it, ``CARDS`` at one card each. The decision
asks whether they hold; whoever explains asks what is there and what is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runtime.protocol.hardware import Gpu
from runtime.protocol.nodes import CardHealth, NodeState
from runtime.protocol.states import Driver
from runtime.server.services.card_troubles import Trouble, plain
from runtime.server.services.placement.model import (
    CardNeed,
    Need,
    Site,
    fits_model,
    fits_shape,
    fits_vendor,
    shape,
)


@dataclass(frozen=True)
class Constraint:
    """``wants`` says whether the need asks for it at all; ``have`` and ``want`` what stands against what."""

    code: str
    holds: Callable[[Need, Site], bool]
    have: Callable[[Need, Site], Any]
    want: Callable[[Need], Any]
    sentence: str
    """With ``{have}`` and ``{want}``; said when it does not hold."""
    wants: Callable[[Need], bool] = lambda need: True

    def text(self, need: Need, site: Site) -> str:
        return self.sentence.format(have=self.have(need, site), want=self.want(need))


@dataclass(frozen=True)
class CardConstraint:
    """``have``: what a card shows for it; ``said``: a sentence of a card that does not hold it, if there is one."""

    code: str
    holds: Callable[[Gpu, CardNeed, Site], bool]
    have: Callable[[Gpu, Site], Any]
    want: Callable[[CardNeed], Any]
    sentence: str
    """With ``{cards}``: how many hold it, ``{are}`` and ``{have}``: verbs that go with it, and ``{want}``."""
    wants: Callable[[CardNeed], bool] = lambda cards: True
    said: Callable[[Gpu], str] | None = None

    def text(self, count: int, wanted: CardNeed) -> str:
        one = count == 1
        cards, are, have = (f"{count} card", "is", "has") if one else (f"{count} cards", "are", "have")
        return self.sentence.format(cards=cards, are=are, have=have, want=self.want(wanted))


def _driver_there(need: Need, site: Site) -> bool:
    if need.driver is Driver.PROCESS:
        return site.view.process_driver
    # Unknown is not there: the node has not said that its engine answers.
    return site.view.docker_available is True


NODE: tuple[Constraint, ...] = (
    Constraint(
        "node_id",
        lambda need, site: site.view.node_id == need.node_id,
        lambda need, site: site.view.node_id,
        lambda need: need.node_id,
        "the task wants node {want}",
        lambda need: need.node_id is not None,
    ),
    Constraint(
        "online",
        lambda need, site: site.view.state is NodeState.ONLINE,
        lambda need, site: site.view.state.value,
        lambda need: "online",
        "the node is {have}",
    ),
    Constraint(
        "schedulable",
        lambda need, site: site.view.schedulable and not site.view.draining,
        lambda need, site: _cordon(site),
        lambda need: "not cordoned",
        "the node is {have}",
    ),
    Constraint(
        "driver",
        _driver_there,
        lambda need, site: _drivers(site),
        lambda need: need.driver.value,
        "driver {want} is wanted, the node has {have}",
    ),
    Constraint(
        "labels",
        lambda need, site: all(site.view.labels.get(name) == value for name, value in need.node_selector),
        lambda need, site: {name: site.view.labels.get(name) for name, _ in need.node_selector},
        lambda need: dict(need.node_selector),
        "labels {want} are wanted, the node has {have}",
        lambda need: bool(need.node_selector),
    ),
    Constraint(
        "collector",
        lambda need, site: not site.view.collector_failing,
        lambda need, site: _collector(site),
        lambda need: "a working card tool",
        "{want} is needed for work with cards, the node has {have}",
        lambda need: need.cards is not None,
    ),
)

LEFT: tuple[Constraint, ...] = (
    Constraint(
        "slots",
        lambda need, site: site.tasks < site.view.slots_total,
        lambda need, site: site.view.slots_total - site.tasks,
        lambda need: 1,
        "{have} task slots are left, {want} is wanted",
    ),
    Constraint(
        "cpus",
        lambda need, site: site.view.cpu_cores is not None and site.cpus + need.cpus <= site.view.cpu_cores,
        lambda need, site: None if site.view.cpu_cores is None else site.view.cpu_cores - site.cpus,
        lambda need: need.cpus,
        "{have} cores are left, {want} are wanted",
        lambda need: need.cpus > 0,
    ),
    Constraint(
        "memory",
        lambda need, site: (
            site.view.memory_total_mib is not None and site.memory_mib + need.memory_mib <= site.view.memory_total_mib
        ),
        lambda need, site: None if site.view.memory_total_mib is None else site.view.memory_total_mib - site.memory_mib,
        lambda need: need.memory_mib,
        "{have} MiB of memory are left, {want} are wanted",
        lambda need: need.memory_mib > 0,
    ),
    Constraint(
        "host_ports",
        lambda need, site: site.ports.isdisjoint(need.host_ports),
        lambda need, site: sorted(site.ports.intersection(need.host_ports)),
        lambda need: list(need.host_ports),
        "host ports {have} are taken",
        lambda need: bool(need.host_ports),
    ),
)

CARDS: tuple[CardConstraint, ...] = (
    CardConstraint(
        "slice",
        lambda card, wanted, site: fits_shape(card, wanted, site.parents),
        lambda card, site: shape(card, site.parents),
        lambda wanted: wanted.slice or "whole card",
        "{cards} {have} the shape that is wanted ({want})",
    ),
    CardConstraint(
        "mig_mode",
        lambda card, wanted, site: not _in_mig_mode(card, site),
        lambda card, site: "MIG mode on" if _in_mig_mode(card, site) else "MIG mode not on, as far as is known",
        lambda wanted: "MIG mode off",
        "{cards} {are} not in MIG mode",
        lambda wanted: wanted.slice is None,
        lambda card: (
            f"card {card.parent_uuid or card.uuid} is in MIG mode: it is given in slices only; ask for `slice`, or "
            "turn MIG off"
        ),
    ),
    CardConstraint(
        "vendor",
        lambda card, wanted, site: fits_vendor(card, wanted),
        lambda card, site: card.vendor,
        lambda wanted: wanted.vendor or "a real card",
        "{cards} {are} of vendor {want}",
    ),
    CardConstraint(
        "model",
        lambda card, wanted, site: fits_model(card, wanted),
        lambda card, site: card.model,
        lambda wanted: wanted.model,
        "{cards} {are} of a model like {want}",
        lambda wanted: wanted.model is not None,
    ),
    CardConstraint(
        "class",
        lambda card, wanted, site: card.gpu_class == wanted.gpu_class,
        lambda card, site: card.gpu_class,
        lambda wanted: wanted.gpu_class,
        "{cards} {are} of class {want}",
        lambda wanted: wanted.gpu_class is not None,
    ),
    CardConstraint(
        "gpu_memory",
        lambda card, wanted, site: (
            card.memory_total_mib is not None and card.memory_total_mib >= (wanted.min_memory_mib or 0)
        ),
        lambda card, site: card.memory_total_mib,
        lambda wanted: wanted.min_memory_mib,
        "{cards} {are} known to have {want} MiB",
        lambda wanted: wanted.min_memory_mib is not None,
    ),
    CardConstraint(
        "uuids",
        lambda card, wanted, site: wanted.uuids is not None and card.uuid in wanted.uuids,
        lambda card, site: card.uuid,
        lambda wanted: list(wanted.uuids or ()),
        "{cards} {are} among {want}",
        lambda wanted: wanted.uuids is not None,
    ),
    CardConstraint(
        "mps",
        lambda card, wanted, site: _mps_capable(card, site),
        lambda card, site: "MPS" if _mps_capable(card, site) else "no MPS, as far as is known",
        lambda wanted: "MPS",
        "{cards} can share by MPS now",
        lambda wanted: wanted.mps,
    ),
    CardConstraint(
        "health",
        lambda card, wanted, site: site.healthy(card),
        lambda card, site: troubled(card, site).health.value if not site.healthy(card) else "ok",
        lambda wanted: "ok",
        "{cards} {are} known to be well",
    ),
)
"""What does not change while a decision is being made; being free does, and is asked last."""


def static_cards(need: CardNeed, site: Site) -> tuple[Gpu, ...]:
    """The node's cards that would do, free or not."""
    asked = [constraint for constraint in CARDS if constraint.wants(need)]
    return tuple(card for card in site.view.gpus if all(constraint.holds(card, need, site) for constraint in asked))


def asked_of(wanted: CardNeed, site: Site) -> tuple[Gpu, ...]:
    """The cards that a need is about: those that it names, else all of the node."""
    return tuple(card for card in site.view.gpus if wanted.uuids is None or card.uuid in wanted.uuids)


def troubled(card: Gpu, site: Site) -> Trouble:
    """What is wrong with a card that is not healthy: its own word, else that of the card that it is a part of."""
    names = [card.uuid] if card.parent_uuid is None else [card.uuid, card.parent_uuid]
    for name in names:
        state = site.view.card_health.get(name, CardHealth.UNKNOWN)
        if state is not CardHealth.OK:
            return site.view.card_troubles.get(name) or plain(name, state)
    return plain(card.uuid, CardHealth.OK)


def _cordon(site: Site) -> str:
    cordon = site.view.cordon
    if cordon is not None:
        return f"cordoned by {cordon.owner}" + (f": {cordon.reason}" if cordon.reason else "")
    return "draining" if site.view.draining else "not cordoned"


def _collector(site: Site) -> str:
    if not site.view.collector_failing:
        return "a working card tool"
    return "a card tool that fails" + (f" ({site.view.collector_error})" if site.view.collector_error else "")


def _drivers(site: Site) -> str:
    docker = {True: "docker", False: "no docker", None: "docker unknown"}[site.view.docker_available]
    return f"{docker}, process" if site.view.process_driver else docker


def _in_mig_mode(card: Gpu, site: Site) -> bool:
    return (card.parent_uuid or card.uuid) in site.mig


def _mps_capable(card: Gpu, site: Site) -> bool:
    known = site.view.capabilities.get(card.uuid)
    return known is not None and known.mps_capable is True
