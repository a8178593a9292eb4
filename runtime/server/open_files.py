"""How many connections this process can hold: each is an open file, and systemd's ordinary limit is 1024 of them."""

from __future__ import annotations

import dataclasses
import logging
import resource

from runtime.server.settings import ServerSettings

log = logging.getLogger(__name__)

SPARE = 256
"""Kept for the database, the log and the builds that are handed out: without them no request is answered."""

MIRROR_CONNECTIONS = 500
"""Of the static mirror. A node holds one for a download, once in an upgrade."""


def fitted(settings: ServerSettings) -> ServerSettings:
    """``settings`` with a connection limit that the process's open files allow, after raising what may be raised.

    The API and the doorbell have as many connections each; the mirror has a number of its own.
    """
    ports = 2 if settings.doorbell_listen else 1
    spare = SPARE + (MIRROR_CONNECTIONS if settings.mirror_listen else 0)
    allowed = _raise_to(ports * settings.connection_limit + spare)
    limit = connections(allowed, ports, spare)
    if limit >= settings.connection_limit:
        return settings
    log.warning(
        "connection_limit is %d instead of %d, since this process may open %d files; with systemd raise LimitNOFILE "
        "to %d",
        limit,
        settings.connection_limit,
        allowed,
        ports * settings.connection_limit + spare,
    )
    return dataclasses.replace(settings, connection_limit=limit)


def connections(open_files: int, ports: int, spare: int = SPARE) -> int:
    """How many connections each of ``ports`` may hold when ``open_files`` are allowed and ``spare`` are kept."""
    return max(1, (open_files - min(spare, open_files // 2)) // ports)


def _raise_to(wanted: int) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= wanted:
        return wanted
    reached = wanted if hard == unlimited else min(wanted, hard)
    if reached > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reached, hard))
    return max(reached, soft)
