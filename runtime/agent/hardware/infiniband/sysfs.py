"""Ports out of /sys/class/infiniband, by the files' paths: read from a machine, or from a record of one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Optional

from runtime.agent.hardware.infiniband import ports
from runtime.agent.hardware.infiniband.ports import Port
from runtime.agent.hardware.values import whole

ROOT = Path("/sys/class/infiniband")
FILES = ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid", "gids/0")
LONGEST = 4096

_ADAPTER = re.compile(rf"(?:.*/)?(?P<hca>{ports.NAME})/(?P<file>hca_type|device/numa_node)")
_PORT = re.compile(rf"(?:.*/)?(?P<hca>{ports.NAME})/ports/(?P<port>{ports.NUMBER})/(?P<file>.+)")

Tree = dict[str, str]
"""Path below the class folder -> content."""


def read_tree(root: Path = ROOT) -> tuple[Tree, list[str]]:
    """The files of all adapters, and the names of those that could not be looked at. No folder: no adapter."""
    tree: Tree = {}
    unreadable: list[str] = []
    try:
        adapters = sorted(root.iterdir())
    except FileNotFoundError:
        return {}, []
    except OSError:
        return {}, [root.name]
    for adapter in adapters:
        try:
            numbers = sorted(path.name for path in (adapter / "ports").iterdir())
        except OSError:
            unreadable.append(adapter.name)
            continue
        for path in ("hca_type", "device/numa_node", *(f"ports/{n}/{file}" for n in numbers for file in FILES)):
            content = _read(adapter / path)
            if content is not None:
                tree[f"{adapter.name}/{path}"] = content
    return tree, unreadable


def _read(path: Path) -> Optional[str]:
    try:
        with path.open("rb") as file:
            return file.read(LONGEST).decode("utf-8", "replace")
    except OSError:
        return None


def ports_of(tree: Tree) -> list[Port]:
    """In the order of their names, numbers by value: ``mlx5_2`` before ``mlx5_10``."""
    found: dict[tuple[str, int], Tree] = {}
    beside: dict[str, Tree] = {}
    for path, content in tree.items():
        of_port, of_adapter = _PORT.fullmatch(path), _ADAPTER.fullmatch(path)
        if of_port is not None:
            found.setdefault((of_port["hca"], int(of_port["port"])), {})[of_port["file"]] = content
        elif of_adapter is not None:
            beside.setdefault(of_adapter["hca"], {})[of_adapter["file"]] = content
    return [_port(hca, port, files, beside.get(hca, {})) for (hca, port), files in sorted(found.items(), key=_place)]


def _place(item: tuple[tuple[str, int], Any]) -> tuple[Any, ...]:
    (hca, port), _ = item
    return (*((int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d{1,9})", hca)), (port, ""))


def _port(hca: str, port: int, files: Tree, beside: Tree) -> Port:
    prefix, zero = ports.gid_of(files.get("gids/0"))
    numa = whole(beside.get("device/numa_node"))
    return Port(
        hca=hca,
        port=port,
        ca_type=ports.word_of(beside.get("hca_type")),
        state=ports.state_of(files.get("state")),
        phys_state=ports.phys_state_of(files.get("phys_state")),
        rate_gbps=ports.rate_of(files.get("rate")),
        lid=ports.lid_of(files.get("lid")),
        sm_lid=ports.lid_of(files.get("sm_lid")),
        link_layer=ports.link_layer_of(files.get("link_layer")),
        gid_prefix=prefix,
        gid_zero=zero,
        numa_node=None if numa is None or numa < 0 else numa,
    )


def parse_record(text: str) -> dict[str, Any]:
    """A record of the folder, as JSON of path -> content."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        tree = None
    if not isinstance(tree, dict):
        return ports.summary([], [])
    files = {path: content for path, content in tree.items() if isinstance(content, str)}
    return ports.summary(ports_of(files), [], none=not tree)
