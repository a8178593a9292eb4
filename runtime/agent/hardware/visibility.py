"""Which cards a task sees: the environment, the device files and the engine's options, by vendor.

The variables belong to the agent; what a task or an image says in their place is replaced. NVIDIA's cards go by
uuid, through the engine; those of the other vendors as their modules describe.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Optional

from runtime.agent.hardware.detectors import VENDORS
from runtime.agent.hardware.giving.decide import to_container, to_process
from runtime.agent.hardware.giving.description import Card, CardOptions, Giving, Host, NotGiven
from runtime.agent.hardware.giving.host import read_host
from runtime.agent.hardware.nvml_cards import VENDOR as NVIDIA
from runtime.agent.hardware.virtual import VENDOR as VIRTUAL
from runtime.protocol.hardware import Gpu

if TYPE_CHECKING:
    from runtime.agent.hardware.inventory import GpuSnapshot

NVIDIA_RUNTIME = "nvidia"

GIVINGS: dict[str, Giving] = {vendor.name: vendor.giving for vendor in VENDORS}

HANDED_OUT = (NVIDIA, VIRTUAL, *GIVINGS)
"""Vendors whose cards we know how to give."""

NVIDIAS_VARIABLES = (
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    # What else makes NVIDIA's runtime hook hand out devices or rights over them.
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_NVSWITCH",
    "NVIDIA_GDS",
    "NVIDIA_GDRCOPY",
    "NVIDIA_MOFED",
    # The daemon of another task's cards is not to be found by a guess.
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
)

OWNED_VARIABLES = tuple(
    dict.fromkeys((*NVIDIAS_VARIABLES, *(name for giving in GIVINGS.values() for name in giving.all_variables())))
)
"""Variables that a task cannot set, and that an image cannot set either: of all vendors, any of whose runtimes may be
an engine's default."""

MOUNTED = frozenset(place for giving in GIVINGS.values() for place in giving.mounts)
"""Whatever of a driver may be shown to a container."""

Decide = Callable[[Sequence[Card], Sequence[Card], Host], CardOptions]
"""(the task's cards, all cards of their vendor on this node, host) -> what the task gets. Raises NotGiven."""


def container_options(cards: Sequence[Card], listed: Sequence[Card] = (), host: Host = Host()) -> CardOptions:
    """For a container. Without cards every vendor's hook that would give some is told to give none, whatever the image
    asks for. NVIDIA's go by the variable of its runtime where the engine has it, else by a device request."""
    giving, nvidia = _giving(cards)
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NVIDIA_VISIBLE_DEVICES": "void"}
    for runtime in (each for one in GIVINGS.values() for each in one.runtimes):
        if runtime.none is not None and runtime.name in host.runtimes:
            environment[runtime.variable] = runtime.none
    if giving is not None:
        return _with(environment, to_container(giving, cards, listed, host))
    if not nvidia:
        return CardOptions(environment)
    uuids = [card.gpu.uuid for card in cards]
    environment["NVIDIA_VISIBLE_DEVICES"] = ",".join(uuids)
    environment["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
    if NVIDIA_RUNTIME in host.runtimes:
        return CardOptions(environment, NVIDIA_RUNTIME)
    request = {"Driver": "nvidia", "Count": 0, "DeviceIDs": uuids, "Capabilities": [["gpu"]], "Options": {}}
    return CardOptions(environment, requests=(request,))


def process_options(cards: Sequence[Card], listed: Sequence[Card] = (), host: Host = Host()) -> CardOptions:
    """For a plain process, which no runtime hook gives its cards: the vendor's library itself reads which it may use.
    Without cards it is told of none. NVIDIA's device files are the process driver's to find."""
    giving, nvidia = _giving(cards)
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    if giving is not None:
        if "CUDA_VISIBLE_DEVICES" in giving.variables:
            del environment["CUDA_VISIBLE_DEVICES"]  # empty it would hide this vendor's cards, too
        return _with(environment, to_process(giving, cards, listed, host))
    if nvidia:
        uuids = ",".join(card.gpu.uuid for card in cards)
        environment["CUDA_VISIBLE_DEVICES"] = environment["NVIDIA_VISIBLE_DEVICES"] = uuids
    return CardOptions(environment)


def given(gpus: Sequence[Gpu], snapshot: GpuSnapshot, runtimes: Sequence[str], decide: Decide) -> CardOptions:
    """What ``decide`` says of these cards by the inventory and the host as they are now. Raises NotGiven."""
    vendor = gpus[0].vendor if gpus else None
    giving = GIVINGS.get(vendor or "")
    host = Host(runtimes=tuple(runtimes)) if giving is None else read_host(giving, runtimes)
    listed = [gpu for gpu in snapshot.gpus or () if gpu.vendor == vendor and gpu.parent_uuid is None]

    def cards(of: Sequence[Gpu]) -> list[Card]:
        return [Card(gpu, snapshot.tells.get(gpu.uuid, {})) for gpu in of]

    return decide(cards(gpus), cards(listed), host)


def _giving(cards: Sequence[Card]) -> tuple[Optional[Giving], bool]:
    """(how they are given when a description says so, whether they are NVIDIA's). Raises NotGiven."""
    vendors = {card.gpu.vendor for card in cards}
    if len(vendors) > 1:
        raise NotGiven(f"a task cannot have cards of {' and '.join(sorted(vendors))} together")
    vendor = next(iter(vendors), VIRTUAL)
    if vendor in (NVIDIA, VIRTUAL):
        return None, vendor == NVIDIA
    if vendor not in GIVINGS:
        raise NotGiven(f"this release cannot give a card of {vendor} ({cards[0].gpu.uuid}) to a task")
    for card in cards:
        if card.gpu.parent_uuid is not None:
            raise NotGiven(f"this release cannot give a slice of a card of {vendor} ({card.gpu.uuid}) to a task")
    return GIVINGS[vendor], False


def _with(environment: dict[str, str], options: CardOptions) -> CardOptions:
    return dataclasses.replace(options, environment={**environment, **options.environment})
