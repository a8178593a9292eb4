"""Where this control plane is reached, as the one who asks sees it."""

from __future__ import annotations

import functools
import re
from urllib.parse import urlsplit

from runtime.protocol import routes
from runtime.server.settings import ServerSettings, split_listen

HOST = re.compile(r"[A-Za-z0-9.:\[\]-]+")


@functools.lru_cache(maxsize=1024)
def _doorbell(listen: str, public_url: str | None, host: str) -> str | None:
    if not listen:
        return None
    scheme = "http"
    if public_url is not None:
        parts = urlsplit(public_url)
        scheme, host = parts.scheme, parts.netloc
    if HOST.fullmatch(host) is None:
        return None
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return None
    if not name:
        return None
    _, port = split_listen(listen)
    shown = f"[{name}]" if ":" in name else name
    return f"{scheme}://{shown}:{port}{routes.DOORBELL}"


def doorbell_url(settings: ServerSettings, host: str) -> str | None:
    """The doorbell's address for a client that reached us as ``host``; None when it is off."""
    if settings.doorbell_url and settings.doorbell_listen:
        return f"{settings.doorbell_url}{routes.DOORBELL}"
    return _doorbell(settings.doorbell_listen, settings.public_url, host)
