"""Tries every door to a listening socket that Linux has, and what an agent must still be able to do.

Runs by itself on a node: ``python3 port_trial.py FILE`` as a service of the agent's unit with another ExecStart, and
once outside of it, to show that the doors are there. Says READY, writes one JSON object to FILE (trial -> "open",
the name of the error, or the signal that ended it) and then waits to be stopped.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

IO_URING_SETUP = 425
MAP_32BIT = 0x40
MS_BIND, MNT_DETACH = 4096, 2
SOCKETCALL, SYS_LISTEN, LISTEN_I386 = 102, 4, 363

libc = ctypes.CDLL(None, use_errno=True)


def outcome(attempt: Callable[[], object]) -> str:
    """ "open", or why not."""
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "open"


def listening(family: int, address: object) -> Callable[[], None]:
    def attempt() -> None:
        with socket.socket(family, socket.SOCK_STREAM) as one:
            one.bind(address)  # not refused: who may not listen gains nothing by it
            one.listen()

    return attempt


def io_uring() -> None:
    descriptor = libc.syscall(IO_URING_SETUP, 8, ctypes.create_string_buffer(120))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "io_uring_setup")
    os.close(descriptor)


def as_i386(number: int, first: int, second: int) -> int:
    """A system call by the table of i386, made from this very process: its answer, negative for an error."""
    page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_32BIT, 7)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    code = b"\x53\xb8" + struct.pack("<I", number) + b"\xbb" + struct.pack("<I", first)
    code += b"\xb9" + struct.pack("<I", second) + b"\xcd\x80\x5b\xc3"  # push rbx; mov eax, ebx, ecx; int 0x80; pop; ret
    page.write(code)
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(address)())


def low(data: bytes) -> int:
    """The address of a copy of ``data`` below 4 GiB, where i386 can reach it."""
    page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_32BIT, 3)
    page.write(data)
    kept.append(page)
    return ctypes.addressof(ctypes.c_char.from_buffer(page))


kept: list[mmap.mmap] = []


def by_i386(multiplexed: bool) -> Callable[[], None]:
    def attempt() -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            if multiplexed:
                answer = as_i386(SOCKETCALL, SYS_LISTEN, low(struct.pack("<II", one.fileno(), 1)))
            else:
                answer = as_i386(LISTEN_I386, one.fileno(), 1)
        if answer < 0:
            raise OSError(-answer, "listen")

    return attempt


def in_child(attempt: Callable[[], object]) -> str:
    """The outcome in a process of its own, which may be killed for it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, outcome(attempt).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else said


def by_program(*words: str) -> str:
    """What a program that was started says; a session of its own changes nothing."""
    done = subprocess.run(words, capture_output=True, text=True, start_new_session=True)
    return done.stdout.strip() or f"status {done.returncode}: {done.stderr.strip()}"


LISTENS = """
import errno, socket
try:
    socket.create_server(("127.0.0.1", 0)).close()
    print("open")
except OSError as error:
    print(errno.errorcode[error.errno])
"""


def mounting() -> None:
    """A bind mount of the agent's is one of the whole machine: process 1 sees it."""
    place = Path(f"/run/port-trial-mount-{os.getpid()}")
    place.mkdir()
    try:
        if libc.mount(b"/etc", bytes(place), None, MS_BIND, None) != 0:
            raise OSError(ctypes.get_errno(), "mount")
        seen = str(place) in Path("/proc/1/mountinfo").read_text()
        if libc.umount2(bytes(place), MNT_DETACH) != 0:
            raise OSError(ctypes.get_errno(), "umount2")
        if not seen:
            raise OSError(errno.ENOENT, "process 1 does not see it")
    finally:
        place.rmdir()


def connecting() -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("/run/docker.sock")
        one.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
        assert b"200 OK" in one.recv(4096)


def resolving() -> None:
    socket.getaddrinfo("localhost", 80)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("127.0.0.1", 53))


def trials() -> dict[str, str]:
    found = {
        "tcp": outcome(listening(socket.AF_INET, ("127.0.0.1", 0))),
        "tcp6": outcome(listening(socket.AF_INET6, ("::", 0))),
        "unix": outcome(listening(socket.AF_UNIX, f"\0port-trial-{os.getpid()}")),
        "unix with a file": outcome(listening(socket.AF_UNIX, f"/run/port-trial-{os.getpid()}.sock")),
        "a child": in_child(listening(socket.AF_INET, ("127.0.0.1", 0))),
        "another program": by_program("/usr/bin/python3", "-I", "-c", LISTENS),
        "io_uring": outcome(io_uring),
        "connect": outcome(connecting),
        "resolve": outcome(resolving),
        "mount": outcome(mounting),
        "vendor's tool": "open" if by_program("nvidia-smi", "-L").startswith("GPU 0:") else "failed",
    }
    if platform.machine() == "x86_64":
        found["i386 socketcall"] = in_child(by_i386(multiplexed=True))
        found["i386 listen"] = in_child(by_i386(multiplexed=False))
    return found


def main() -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
            one.connect(address.replace("@", "\0", 1))
            one.send(b"READY=1")
    beside = Path(f"{sys.argv[1]}.new")
    beside.write_text(json.dumps(trials()))
    beside.replace(sys.argv[1])
    if address:
        signal.pause()


if __name__ == "__main__":
    main()
