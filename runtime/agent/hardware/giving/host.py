"""What of a description is on this host: its device files, whose they are, and what its driver has for programs."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional

from runtime.agent.hardware.giving.description import DeviceFile, Giving, Host
from runtime.agent.hardware.pci import normal_bus_id

ROOT = Path("/")
BY_PATH = "dev/dri/by-path"
_READ_AND_WRITE = stat.S_IRGRP | stat.S_IWGRP
_PCI = re.compile(r"/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?=/|$)", re.IGNORECASE)


def read_host(about: Giving, runtimes: Sequence[str] = (), root: Path = ROOT) -> Host:
    """Seen below ``root``; nothing of it is followed out of /dev."""
    links = dict(_by_path(root))
    found = {}
    for pattern in (*about.patterns, *about.control):
        for path in sorted(root.glob(pattern.lstrip("/"))):
            name = "/" + path.relative_to(root).as_posix()
            file = _device_file(path, name, links.get(name), root)
            if file is not None:
                found[name] = file
    places = frozenset(place for place in about.mounts if (root / place.lstrip("/")).exists())
    return Host(tuple(found.values()), places, tuple(runtimes))


def _device_file(path: Path, name: str, bus_id: Optional[str], root: Path) -> Optional[DeviceFile]:
    """None for what is no character device (any more)."""
    try:
        about = path.lstat()
    except OSError:
        return None
    if not stat.S_ISCHR(about.st_mode):
        return None
    group = about.st_gid if about.st_mode & _READ_AND_WRITE == _READ_AND_WRITE else None
    return DeviceFile(name, _bus_id(about.st_rdev, root) or bus_id, group)


def _bus_id(number: int, root: Path) -> Optional[str]:
    """The PCI device nearest to a device file in the kernel's tree."""
    link = root / f"sys/dev/char/{os.major(number)}:{os.minor(number)}"
    try:
        devices = _PCI.findall(os.path.realpath(link) if link.exists() else "")
        parent = link / "device"
        devices = devices or _PCI.findall(os.path.realpath(parent) if parent.exists() else "")
    except OSError:
        return None
    return normal_bus_id(devices[-1]) if devices else None


def _by_path(root: Path) -> Iterator[tuple[str, str]]:
    """(device file, bus id) of udev's links ``pci-0000:17:00.0-render``, which name one card each."""
    for link in sorted((root / BY_PATH).glob("pci-*")):
        bus_id = normal_bus_id(link.name)
        target = _target(link)
        if bus_id is not None and target is not None:
            yield f"/dev/dri/{target}", bus_id


def _target(link: Path) -> Optional[str]:
    try:
        return Path(os.readlink(link)).name  # noqa: PTH115 (Python 3.9 has it on paths, with a prefix of its own)
    except OSError:
        return None
