"""The shell scripts that nodes fetch, rendered from ``templates/``: the same bytes from a server and on a mirror.

The one module of this room that the control plane imports, too: it serves the scripts that a mirror is made of.
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

import jinja2

SCRIPTS = (
    "install-agent.sh",
    "update-agent-quick.sh",
    "update-agent-force.sh",
    "uninstall-agent.sh",
    "deploy-agent-all-in-one.sh",
)

HOST = r"[A-Za-z0-9.:\[\]-]{1,255}"
"""What a host with its port may look like in a script, as a regular expression."""
_HOST = re.compile(HOST, re.ASCII)


class AddressForScriptsError(ValueError):
    """An address has a character that a shell could take for something else."""


def address(url: str) -> str:
    """``url`` as it may stand in a script: scheme and host, no slash at the end.

    Raises AddressForScriptsError for another scheme, or a host with anything but ``A-Z a-z 0-9 . : [ ] -``. Its
    words do not repeat the address: they may be the body of an answer that somebody gives to a shell.
    """
    scheme, _, host = url.rstrip("/").partition("://")
    if scheme not in ("http", "https") or _HOST.fullmatch(host) is None:
        raise AddressForScriptsError(
            f"Found {_odd(host)}, wanted http:// or https:// and a host of A-Z a-z 0-9 . : [ ] - only"
        )
    return f"{scheme}://{host}"


def _odd(host: str) -> str:
    strange = next((char for char in host if _HOST.fullmatch(char) is None), None)
    if strange is not None:
        return f"the character U+{ord(strange):04X}"
    return f"a host of {len(host)} characters" if _HOST.fullmatch(host) is None else "another scheme"


def templates_folder() -> Path:
    """``templates/`` of the checkout, else of the installation."""
    beside = Path(__file__).resolve().parents[2] / "templates"
    return beside if beside.is_dir() else Path(sys.prefix) / "share" / "heterofleet" / "templates"


@functools.cache
def environment() -> jinja2.Environment:
    """How templates are rendered, here and by whoever else needs the same bytes. A changed file is read anew."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_folder()),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - shell scripts and units; what goes in is checked before
        keep_trailing_newline=False,
    )


def script(name: str, server_url: str = "", mirror_url: str = "") -> str:
    """The text of one of ``SCRIPTS``, with what it uses when its caller names nothing else.

    ``server_url``: the control plane; empty leaves it to ``--server``. ``mirror_url``: where builds are fetched
    from; empty is the control plane itself. Both come from ``address``.
    """
    return environment().get_template(f"{name}.j2").render(server_url=server_url, mirror_url=mirror_url) + "\n"
