"""A folder that is mounted when somebody looks into it, as ``x-systemd.automount`` makes them."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from pathlib import Path
from typing import NoReturn

from runtime.agent.tasks.records import Key
from runtime.protocol.tasks import Volume
from tests.integration.fence.yard import GOOD, Yard, libc

KEY = Key("on-demand", 1)
_READY = 0x9360  # _IO(0x93, 0x60)
_TOKEN = struct.Struct("ii I")
_PACKET_BYTES = 1024


def automount(point: Path, made: int) -> NoReturn:
    """The automounter: mounts a file system at ``point`` when the kernel asks for it, once."""
    os.setsid()  # the kernel asks nobody of the automounter's own group to wait for it
    asks, told = os.pipe()
    options = f"fd={told},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct".encode()
    code = libc.mount(b"hf", os.fsencode(point), b"autofs", 0, options)
    below = os.open(point, os.O_RDONLY | os.O_DIRECTORY)
    os.write(made, b"1" if code == 0 else b"0")
    _, _, token = _TOKEN.unpack_from(os.read(asks, _PACKET_BYTES))
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", point], check=True)
    (point / "job").mkdir()
    (point / "job" / "marker").write_text(GOOD)
    fcntl.ioctl(below, _READY, token)
    os._exit(0)


def test_what_is_mounted_on_demand_gets_mounted(yard: Yard) -> None:
    """A walk by handles that only look mounts nothing, and finds an empty folder."""
    point = yard.data / "auto"
    point.mkdir()
    ready, made = os.pipe()
    child = os.fork()
    if not child:
        try:
            automount(point, made)
        finally:
            os._exit(1)
    os.close(made)
    try:
        assert os.read(ready, 1) == b"1"
        yard.pins.pin(KEY, [Volume(str(point / "job"), "/job")], yard.fence)
        assert (Path(yard.pins.place(KEY, 0)) / "marker").read_text() == GOOD
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        child = 0
    finally:
        yard.pins.release(KEY)
        if child:
            os.kill(child, 9)
            os.waitpid(child, 0)
        while any(f" {point} " in line for line in Path("/proc/self/mountinfo").read_text().splitlines()):
            subprocess.run(["umount", "-l", point], check=True)  # what was mounted, then the automounter's own
