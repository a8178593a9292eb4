"""Which device files are a card's: by what the tool tells, by what the kernel tells, by number only where no number can
have moved. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runtime.agent.hardware.giving.description import Card, DeviceFile, Files, Host, NotGiven, Number, index

DRI = "/dev/dri/"


def numbered(prefix: str, number: Number = index) -> Files:
    """``<prefix>N``. The kernel's word on a file's PCI device counts first, where it is one card's alone.

    Without it N is the card's number, and only while the highest number that is listed is the highest file's: when a
    card is gone a tool may count anew, and then a file of that number is another card's.
    """

    def files(card: Card, listed: Sequence[Card], host: Host) -> Sequence[str]:
        found = _by_number(prefix, host)
        bus_id = card.gpu.pci_bus_id
        alone = bus_id is not None and sum(each.gpu.pci_bus_id == bus_id for each in listed) == 1
        same = [file.path for file in found.values() if alone and file.bus_id == bus_id]
        if len(same) == 1:
            return same
        own = number(card)
        if own is None:
            raise NotGiven(f"which file {prefix}N belongs to card {card.gpu.uuid} is not known: its tool has no number")
        path = f"{prefix}{own}"
        if own not in found:
            return [path]
        if found[own].bus_id not in (None, bus_id):
            raise NotGiven(f"{path} is of the device at {found[own].bus_id}, not of card {card.gpu.uuid}")
        numbers = [each for each in map(number, listed) if each is not None]
        if numbers.count(own) > 1:
            raise NotGiven(f"{numbers.count(own)} cards have the number {own}: which is {path} is not known")
        if max(numbers, default=own) != max(found):
            raise NotGiven(
                f"whether {path} is card {card.gpu.uuid} is not known: the tool counts to {max(numbers, default=own)}, "
                f"the files {prefix}N to {max(found)}, and the kernel does not say whose they are"
            )
        return [path]

    return files


def told(key: str, form: str, otherwise: Files) -> Files:
    """The file that the tool itself names as ``key``: a path or a number, put into ``form``."""
    pattern = re.compile(re.escape(form).replace(r"\{\}", "[0-9]{1,6}"))

    def files(card: Card, listed: Sequence[Card], host: Host) -> Sequence[str]:
        said = card.tells.get(key)
        path = form.format(said) if isinstance(said, int) else said
        return [path] if isinstance(path, str) and pattern.fullmatch(path) else otherwise(card, listed, host)

    return files


def unsplit(key: str, whole: Sequence[str], files: Files) -> Files:
    """Numbers count only for a card of which the tool says by ``key`` that it is not split: else the kernel's word on
    every file, or none."""

    def checked(card: Card, listed: Sequence[Card], host: Host) -> Sequence[str]:
        if card.tells.get(key) in whole:
            return files(card, listed, host)
        known = [path.path for path in host.files if card.gpu.pci_bus_id and path.bus_id == card.gpu.pci_bus_id]
        if not known:
            raise NotGiven(f"card {card.gpu.uuid} may be split, and which files are its instances' is not known")
        return known

    return checked


def graphics(*, needed: bool = True) -> Files:
    """The card's ``cardN`` and ``renderDN`` below /dev/dri, by its PCI address."""

    def files(card: Card, listed: Sequence[Card], host: Host) -> Sequence[str]:
        bus_id = card.gpu.pci_bus_id
        if bus_id is None:
            if needed:
                raise NotGiven(f"which files below {DRI} belong to card {card.gpu.uuid} is not known: no PCI address")
            return []
        if sum(each.gpu.pci_bus_id == bus_id for each in listed) > 1:
            raise NotGiven(
                f"which files below {DRI} belong to card {card.gpu.uuid} is not known: others share {bus_id}"
            )
        found = [file.path for file in host.files if file.path.startswith(DRI) and file.bus_id == bus_id]
        if needed and not any("render" in path for path in found):
            return [*found, f"{DRI}by-path/pci-{_kernels(bus_id)}-render"]
        return found

    return files


def beside(first: Files, *others: Files) -> Files:
    """All of them."""

    def files(card: Card, listed: Sequence[Card], host: Host) -> Sequence[str]:
        return [path for each in (first, *others) for path in each(card, listed, host)]

    return files


def where_there(form: str, number: Number = index) -> Files:
    """A file that only some drivers have."""

    def files(card: Card, listed: Sequence[Card], host: Host) -> Sequence[str]:
        path = form.format(number(card))
        return [path] if any(file.path == path for file in host.files) else []

    return files


def _by_number(prefix: str, host: Host) -> dict[int, DeviceFile]:
    form = re.compile(re.escape(prefix) + r"([0-9]{1,6})")
    found = [(form.fullmatch(file.path), file) for file in host.files]
    return {int(match[1]): file for match, file in found if match is not None}


def _kernels(bus_id: str) -> str:
    """As the kernel writes it, and udev in the names of links."""
    return bus_id[4:].lower()
