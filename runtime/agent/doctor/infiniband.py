"""InfiniBand and RoCE ports: which carry data, and what keeps the others from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from runtime.agent.doctor.findings import Finding, Point, finding, ok, unknown, warning
from runtime.agent.hardware.infiniband import sysfs
from runtime.agent.hardware.infiniband.adapters import UNREADABLE, by_adapter
from runtime.agent.hardware.infiniband.look import Looked, look
from runtime.agent.hardware.infiniband.ports import ACTIVE, ETHERNET, Fault, Port
from runtime.agent.hardware.pci import SYSFS, bound_driver, devices_of_class
from runtime.agent.hardware.tools import ToolError, ToolRunner

CONTROLLER_CLASS = "0x0207"
"""An InfiniBand controller on PCI."""
USER_FILES = Path("/dev/infiniband")

ADVICE: dict[Fault, str] = {
    Fault.NO_MANAGER: "start a subnet manager (opensm on one node, or that of a managed switch); sminfo tells whether "
    "one answers",
    Fault.NO_MANAGER_KNOWN: "see that the subnet's manager runs and knows this port (sminfo, ibstat)",
    Fault.VF_NOT_SET_UP: "give it its addresses on the host (ip link set DEVICE vf N node_guid, port_guid, state auto)",
    Fault.NO_PEER: "look at the cable, and at the switch's port: on, and of the same speed",
    Fault.SWITCHED_OFF: "switch it on if it is to be used (ip link set DEVICE up; mlxlink, ibportstate), and keep it "
    "out of fabrics if not",
    Fault.OTHER: "look at dmesg, and at the switch's port",
}


@dataclass(frozen=True)
class InfinibandFacts:
    """``looked`` None: there was no answer, ``error`` says why. ``controllers``: those on PCI with the kernel's driver,
    None without one. ``fabrics``: as the settings name them. ``user_files``: programs can get at the ports."""

    looked: Optional[Looked] = None
    error: str = ""
    controllers: Mapping[str, Optional[str]] = field(default_factory=dict)
    fabrics: Sequence[Mapping[str, Any]] = ()
    user_files: bool = True


def look_at_infiniband(
    fabrics: Sequence[Mapping[str, Any]],
    root: Path = sysfs.ROOT,
    pci: Path = SYSFS,
    user_files: Path = USER_FILES,
) -> InfinibandFacts:
    looked, error = None, ""
    try:
        looked = look(ToolRunner(), root)
    except ToolError as late:
        error = str(late)
    controllers = {at: bound_driver(at, pci) for at in devices_of_class(CONTROLLER_CLASS, pci)}
    there = next(user_files.glob("uverbs*"), None) is not None
    return InfinibandFacts(looked, error, controllers, fabrics, there)


def judge_infiniband(facts: InfinibandFacts) -> Finding:
    looked = facts.looked
    if looked is None:
        advice = "look at dmesg for the adapter's driver (mlx5_core and its like): its firmware may hang"
        return finding("infiniband", [unknown(f"ports are not known: {facts.error}", advice)])
    points = [*_controllers(facts, looked), *_silent(looked), *_fabrics(facts, looked)]
    labels = by_adapter(facts.fabrics)
    points += [point for port in looked.ports for point in _trouble(port, labels)]
    points += [ok(words) for words in _good(looked.ports, labels)]
    if not facts.user_files and any(port.state == ACTIVE for port in looked.ports):
        advice = "modprobe ib_uverbs, and see that it is loaded at every start"
        points.append(warning("no program can use the ports", f"{USER_FILES}/uverbs0 and its like", advice))
    none = "no InfiniBand adapter: this node takes no part in multi-node replicas"
    return finding("infiniband", points or [ok(none)])


def _controllers(facts: InfinibandFacts, looked: Looked) -> list[Point]:
    """Hardware that the kernel makes no adapter of."""
    if looked.ports or looked.unreadable or not facts.controllers:
        return []
    idle = [at for at, driver in facts.controllers.items() if driver is None]
    at = ", ".join(facts.controllers)
    others = ", ".join(sorted({str(driver) for driver in facts.controllers.values()}))
    driver = "without a driver" if idle else f"driven by {others}"
    advice = "load the driver's InfiniBand part (modprobe mlx5_ib), install DOCA or OFED where it is missing; see dmesg"
    words = f"{len(facts.controllers)} InfiniBand controllers on PCI ({at}), {driver}, and no adapter in the kernel"
    return [warning(words, "an adapter below /sys/class/infiniband", advice)]


def _silent(looked: Looked) -> list[Point]:
    advice = "look at dmesg, and load its driver again; in a virtual machine its device file may be of another start"
    return [warning(f"{name} {UNREADABLE}", "an adapter with ports", advice) for name in looked.unreadable]


def _fabrics(facts: InfinibandFacts, looked: Looked) -> list[Point]:
    """Labels for what is not here, and two for one adapter."""
    here = list(dict.fromkeys([*(port.hca for port in looked.ports), *looked.unreadable]))
    advice = f"correct fabrics in agent.yaml; here {'are ' + ', '.join(here) if here else 'is none'}"
    labels = by_adapter(facts.fabrics)
    points = []
    for fabric in facts.fabrics:
        for hca in fabric.get("hcas", []):
            if hca not in here:
                words = f"fabric {fabric['name']} names {hca}, which is not here"
                points.append(warning(words, "an adapter of this node", advice))
            elif labels[hca] != fabric["name"]:
                words = f"{hca} is named by fabric {labels[hca]} and by {fabric['name']}; {labels[hca]} counts"
                points.append(warning(words, "one fabric for an adapter", "correct fabrics in agent.yaml"))
    return points


def _trouble(port: Port, labels: Mapping[str, str]) -> list[Point]:
    name = f"{port.hca} port {port.port}"
    if port.fault is not None:
        if port.link_layer == ETHERNET and port.hca not in labels:
            return [ok(f"{name}: Ethernet, {port.trouble}, in no fabric")]
        return [warning(f"{name}: {port.trouble}", "a port that is active", ADVICE[port.fault])]
    return [] if port.state == ACTIVE else [unknown(f"{name}: its state cannot be read", "look at dmesg")]


def _good(ports: Sequence[Port], labels: Mapping[str, str]) -> list[str]:
    """Ports that carry data, alike ones together."""
    alike: dict[str, list[str]] = {}
    for port in ports:
        if port.state == ACTIVE and port.fault is None:
            layer = "RoCE" if port.link_layer == ETHERNET else port.link_layer or "unknown link layer"
            rate = "unknown rate" if port.rate_gbps is None else f"{port.rate_gbps:g} Gb/s"
            fabric = f"fabric {labels[port.hca]}" if port.hca in labels else "no fabric named"
            alike.setdefault(f"{layer}, active, {rate}, {fabric}", []).append(f"{port.hca} port {port.port}")
    return [f"{', '.join(names)}: {words}" for words, names in alike.items()]
