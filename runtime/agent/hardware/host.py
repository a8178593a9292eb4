"""Facts and load of the machine itself, for the heartbeat."""

from __future__ import annotations

import os
import platform
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Callable, Optional

from runtime.agent.hardware.space import space_of
from runtime.agent.loop import Loop
from runtime.protocol.hardware import Disk, Host

MIB = 1024 * 1024
OS_RELEASE = Path("/etc/os-release")
ADDRESSES_EVERY = 12
"""Addresses are read anew once in this many readings (a minute)."""

INTERVAL_S = 5.0
STALE_INTERVALS = 4


class HostReader:
    """Reads the host each time it is asked; what cannot be read is None. ``engine_root`` is where the engine keeps
    its images, None as long as it has not said so."""

    def __init__(
        self,
        *,
        server: tuple[str, int],
        mgmt_addr: Optional[str],
        paths: list[str],
        engine_root: Callable[[], Optional[str]] = lambda: None,
    ) -> None:
        import psutil

        self._psutil = psutil
        self._server = server
        self._configured_addr = mgmt_addr
        self._paths = ["/", *paths]
        self._engine_root = engine_root
        self._os = os_name()
        self._readings = 0
        self._macs: Optional[list[str]] = None
        self._ips: Optional[list[str]] = None
        self._mgmt_addr: Optional[str] = mgmt_addr
        self._read_addresses(ask_names=False)
        psutil.cpu_percent(interval=None)  # the first reading starts the measurement

    def facts(self) -> Host:
        """What is known without touching a disk or a name server."""
        memory = self._psutil.virtual_memory()
        return Host(
            hostname=hostname(),
            os=self._os,
            kernel=platform.release(),
            cpu_cores=os.cpu_count(),
            memory_total_mib=memory.total // MIB,
            macs=self._macs,
            ips=self._ips,
            mgmt_addr=self._mgmt_addr,
            uptime_s=uptime_s(),
        )

    def read(self) -> Host:
        """Facts and load now; may hang with a disk or a name server."""
        if self._readings % ADDRESSES_EVERY == 0:
            self._read_addresses(ask_names=True)
        self._readings += 1
        memory = self._psutil.virtual_memory()
        return replace(
            self.facts(),
            # Of the time since the last reading; the first one has none.
            cpu_percent=self._psutil.cpu_percent(interval=None) if self._readings > 1 else None,
            memory_used_mib=(memory.total - memory.available) // MIB,
            disks=disks([*self._paths, *filter(None, [self._engine_root()])]),
        )

    def _read_addresses(self, *, ask_names: bool) -> None:
        if self._configured_addr is None:
            self._mgmt_addr = route_source(*self._server, ask_names=ask_names)
        macs: set[str] = set()
        ips: set[str] = set()
        try:
            interfaces = self._psutil.net_if_addrs()
        except OSError:
            self._macs = self._ips = None
            return
        for name, addresses in interfaces.items():
            if name == "lo":
                continue
            for address in addresses:
                if address.family in (socket.AF_INET, socket.AF_INET6):
                    ips.add(address.address.split("%")[0])
                elif address.family == self._psutil.AF_LINK and address.address.strip("0:"):
                    macs.add(address.address)
        self._macs, self._ips = sorted(macs), sorted(ips)


def hostname() -> str:
    """The machine's name in characters that JSON can carry."""
    return os.fsencode(socket.gethostname()).decode("utf-8", "replace")


def os_name() -> Optional[str]:
    """PRETTY_NAME of os-release."""
    try:
        lines = OS_RELEASE.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip().strip("\"'") or None
    return None


def uptime_s() -> Optional[int]:
    try:
        return int(float(Path("/proc/uptime").read_text("ascii").split()[0]))
    except (OSError, ValueError, IndexError):
        return None


def disks(paths: list[str]) -> list[Disk]:
    """One entry a file system, under the first of ``paths`` that lies on it."""
    seen: set[int] = set()
    found = []
    for path in paths:
        try:
            device = Path(path).stat().st_dev
            if device in seen:
                continue
            space = space_of(os.statvfs(path))
        except OSError:
            continue
        seen.add(device)
        found.append(Disk(path, space.total_mib, space.free_mib, space.free_inodes))
    return found


def route_source(host: str, port: int, *, ask_names: bool = True) -> Optional[str]:
    """The own address from which ``host`` is reached; nothing is sent there. None when there is no route.

    ``ask_names`` False: no name server is asked, so a host that is a name gives None.
    """
    flags = 0 if ask_names else socket.AI_NUMERICHOST
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=flags)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0]).split("%")[0]
    except OSError:
        return None


class HostWatch:
    """Reads the host in a loop of its own, so that a disk that hangs delays no beat.

    Load that is older than four intervals is left out: it is no longer known.
    """

    def __init__(
        self, reader: HostReader, interval_s: float = INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._interval_s = interval_s
        self._latest = reader.facts()
        self._read_at = clock()
        self.loop = Loop("host", interval_s, self.refresh)

    def refresh(self) -> None:
        self._latest, self._read_at = self._reader.read(), self._clock()

    def snapshot(self) -> Host:
        if self._clock() - self._read_at <= STALE_INTERVALS * self._interval_s:
            return self._latest
        return replace(self._latest, cpu_percent=None, memory_used_mib=None, disks=None, uptime_s=None)
