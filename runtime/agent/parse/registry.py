"""Tool -> what reads its text. The tool's name is that of its command; a path before it and ``.exe`` do not matter."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any, Callable, Optional

from runtime.agent.hardware.cards import nothing_known
from runtime.agent.hardware.infiniband import devinfo, rdma_link, sysfs
from runtime.agent.hardware.infiniband import tools as infiniband
from runtime.agent.hardware.parsers import (
    brsmi,
    cnmon,
    efsmi,
    hy_smi,
    ixsmi,
    mthreads_gmi,
    mx_smi,
    npu_smi,
    nvidia_smi,
    topo,
    xpu_smi,
)
from runtime.agent.hardware.reading import Parser, Reading
from runtime.agent.parse import docker, engines
from runtime.agent.parse.cards import as_json

CARDS: dict[str, tuple[str, Parser]] = {
    "nvidia-smi": ("nvidia", nvidia_smi.parse),
    "npu-smi": ("ascend", npu_smi.parse),
    "hy-smi": ("hygon", hy_smi.parse),
    "hy-virtual": ("hygon", hy_smi.parse),
    "rocm-smi": ("hygon", hy_smi.parse),
    "cnmon": ("cambricon", cnmon.parse),
    "mthreads-gmi": ("musa", mthreads_gmi.parse),
    "brsmi": ("biren", brsmi.parse),
    "xpu-smi": ("kunlun", xpu_smi.parse),
    "xpu_smi": ("kunlun", xpu_smi.parse),
    "ixsmi": ("iluvatar", ixsmi.parse),
    "mx-smi": ("metax", mx_smi.parse),
    "efsmi": ("enflame", efsmi.parse),
}
"""Command -> (vendor, parser of cards)."""

Text = Callable[["list[str]", str], "dict[str, Any]"]


def _ports(parse: Callable[[str], dict[str, Any]]) -> Text:
    return lambda arguments, text: parse(text)


_IBSTAT = _ports(infiniband.parse)

TEXTS: dict[str, Text] = {
    "ibstat": _IBSTAT,
    "ibstatus": _IBSTAT,
    "ibv_devinfo": _ports(devinfo.parse),
    "rdma": _ports(rdma_link.parse),
    "sysfs": _ports(sysfs.parse_record),
    "docker": docker.parse,
    "v1-models": engines.parse,
    "curl": engines.parse,
    **dict.fromkeys(
        ("vllm", "vllm-omni", "sglang", "llama.cpp", "llama-server", "tgi", "text-generation-launcher"), engines.parse
    ),
    **dict.fromkeys(("mindie", "mindieservice_daemon", "nccl", "lmdeploy"), engines.parse),
}
"""Command, or kind of text -> what reads it."""


class UnknownTool(Exception):
    """No parser; the text says which there are."""

    def __init__(self, tool: str) -> None:
        super().__init__(f"no parser for {tool!r}; there are: {', '.join(sorted({*CARDS, *TEXTS}))}")


def parse_text(tool: str, arguments: list[str], text: str) -> dict[str, Any]:
    """What we make of a text, as plain JSON; ``error`` says so where that is nothing. Raises UnknownTool."""
    name = PurePosixPath(tool).name
    name = re.sub(r"\.exe$", "", name, flags=re.IGNORECASE)
    if name == "nvidia-smi" and (arguments[:1] == ["topo"] or topo.is_matrix(text)):
        return _told("nvidia-smi topo", topo.parse(text))
    if name == "docker" and "logs" in arguments:
        return _told(name, engines.parse(arguments, text))
    found: Optional[tuple[str, Parser]] = CARDS.get(name)
    if found is not None:
        reading = found[1](arguments, text)
        told = as_json(reading, found[0])
        return {**told, "error": nothing_known(name)} if reading == Reading() else told
    reads = TEXTS.get(name)
    if reads is None:
        raise UnknownTool(tool)
    return _told(name, reads(arguments, text))


def _told(name: str, told: dict[str, Any]) -> dict[str, Any]:
    """With a word on it where nothing was read: every value is null, every list empty."""
    if any(value not in (None, [], {}) for value in told.values()) or "models" in told:
        return told
    return {**told, "error": f"{name}: its output has nothing that is known"}
