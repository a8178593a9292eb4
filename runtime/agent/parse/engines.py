"""Why an inference engine did not start, by its own log; and which models one serves.

Logs never change a task's verdict: this is for people. The first line that is a cause wins over the many that only
follow from it ("see root cause above").
"""

from __future__ import annotations

import re
from typing import Any, Callable, Optional

from runtime.agent.engines.served import read_served
from runtime.agent.hardware.parsers import tables
from runtime.agent.tasks.images import PERMANENT, RETRYABLE

_NUMBER = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)"
_GIB = rf"{_NUMBER}\s*GiB"


def parse(arguments: list[str], text: str) -> dict[str, Any]:
    """``{"kind", "reason", ...}``, or ``{"models", "owned_by"}`` for an answer to ``/v1/models``."""
    if text.lstrip().startswith("{"):
        try:
            served = read_served(text)
        except ValueError:
            return {"kind": None, "reason": None}
        models = [{"id": one.id, "max_model_len": one.max_model_len, "root": one.root} for one in served.models]
        return {"models": models, "owned_by": served.owned_by}
    plain = "\n".join(tables.lines(text))
    for pattern, kind, reason, more in _CAUSES:
        found = pattern.search(plain)
        if found is not None:
            return {"kind": kind, "reason": reason, **more(found, plain)}
    for pattern in _FOLLOWS:
        if pattern.search(plain):
            return {"kind": PERMANENT, "reason": "unknown", "ambiguous": True}
    return {"kind": None, "reason": None}


More = Callable[["re.Match[str]", str], "dict[str, Any]"]


def _nothing(found: re.Match[str], text: str) -> dict[str, Any]:
    return {}


def _shm(found: re.Match[str], text: str) -> dict[str, Any]:
    wanted = re.search(r"extend \S+ to ([0-9]{1,18}) bytes|shared memory segment \S+ \(size ([0-9]{1,18})\)", text)
    return {} if wanted is None else {"wanted_bytes": int(wanted[1] or wanted[2])}


def _share(found: re.Match[str], text: str) -> dict[str, Any]:
    share = re.search(rf"mem_fraction_static={_NUMBER}(?![\d./:-])", text)
    return {} if share is None else {"mem_fraction_static": float(share[1])}


def _free(found: re.Match[str], text: str) -> dict[str, Any]:
    """vLLM: somebody else holds the card; it may be free when their container is gone."""
    amounts = re.search(rf"\({_NUMBER}\s*/\s*{_GIB}\).*?\({_NUMBER},\s*{_GIB}\)", text, re.DOTALL)
    more: dict[str, Any] = {"ambiguous": True}
    if amounts is not None:
        free, total, share, wanted = (float(value) for value in amounts.groups())
        more.update(free_gib=free, total_gib=total, wanted_gib=wanted, utilization=share)
    return more


def _card(found: re.Match[str], text: str) -> dict[str, Any]:
    """PyTorch: "capacity" is misspelt in some releases."""
    more: dict[str, Any] = {}
    rest = text[found.start() :]
    index = re.search(r"\bGPU ([0-9]{1,9})(?![\d./:-])", rest)
    total = re.search(rf"(?<![\d.,:/-])(?<!:\d\d ){_GIB} total capac\w+|total capac\w+ of {_GIB}", rest)
    if index is not None:
        more["gpu_index_in_process"] = int(index[1])
    if total is not None:
        more["total_gib"] = float(total[1] or total[2])
    return more


def _port(found: re.Match[str], text: str) -> dict[str, Any]:
    """The port for meeting other processes is another one at the next try; the one for requests is not."""
    meeting = re.search(r"TCPStore|get_open_port|init_process_group|MASTER_PORT|dist_init", text) is not None
    return {"ambiguous": True, "http_port": not meeting}


def _architecture(found: re.Match[str], text: str) -> dict[str, Any]:
    return {"architecture": found[1]}


_CAUSES: tuple[tuple[re.Pattern[str], Optional[str], str, More], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind, reason, more)
    for pattern, kind, reason, more in (
        # /dev/shm before disks: the kernel says the same of both.
        (r"/shm/[^\n]*no space left on device|creating shared memory segment", PERMANENT, "shm", _shm),
        (r"no space left on device", PERMANENT, "disk", _nothing),
        (r"no kernel image is available", PERMANENT, "kernel", _nothing),
        (r"unknown model architecture: '([^']*)'", PERMANENT, "model", _architecture),
        (r"no model architectures are specified|model architectures? \S+ (?:are|is) not supported|"
         r"does not recognize this architecture|error loading model|failed to load model",
         PERMANENT, "model", _nothing),
        (r"free memory on device[^\n]*less than desired", RETRYABLE, "memory", _free),
        (r"not enough memory\. please try to increase --mem-fraction-static", PERMANENT, "memory", _share),
        (r"(?:cuda|hip|npu|musa) out of memory|outofmemoryerror", PERMANENT, "memory", _card),
        (r"no available memory for the cache blocks|larger than the maximum number of tokens that can be stored",
         PERMANENT, "memory", _nothing),
        (r"get_open_port[\s\S]*?address already in use|tcpstore[^\n]*address already in use", RETRYABLE, "port", _port),
        (r"\[?errno 98\]?|eaddrinuse|address already in use", PERMANENT, "port", _port),
        (r"driver/library version mismatch|cuda driver version is insufficient", PERMANENT, "driver", _nothing),
        (r"no cuda-capable device|no cuda gpus are available", PERMANENT, "device", _nothing),
    )
)  # fmt: skip
"""(what is said, kind, reason, what else the text tells), the most certain first."""

_FOLLOWS = (
    re.compile(r"engine core initialization failed|see root cause above|ShardCannotStart", re.IGNORECASE),
    re.compile(r"failed to init endpoint|(?m:^Killed$)|failed to init LLMInferModels", re.IGNORECASE),
)
"""Lines that stand at the end of many failures and name the cause of none."""
