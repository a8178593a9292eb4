"""What two connected sockets of a proxy need beside HTTP: resets, raw copying, who is at the other end."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading

LINGER_NONE = struct.pack("ii", 1, 0)  # close() sends a reset


def watch(client: socket.socket, upstream: socket.socket, over: threading.Event) -> None:
    """End the upstream when the caller leaves in the middle of a stream."""
    while not over.is_set():
        try:
            if select.select([client], [], [], 0.05)[0] and not client.recv(1, socket.MSG_PEEK):
                upstream.shutdown(socket.SHUT_RDWR)
                return
        except (OSError, ValueError):
            return
        over.wait(0.02)


def pipe(one: socket.socket, other: socket.socket) -> None:
    """Both directions, each with its own end, until both are over."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                target.sendall(piece)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    back = threading.Thread(target=copy, args=(one, other), daemon=True)
    back.start()
    copy(other, one)
    back.join()


def peer(client: socket.socket) -> int | None:
    if client.family != socket.AF_UNIX:
        return None
    return int(struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def reset(client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
    client.close()
