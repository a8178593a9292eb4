"""Docker's words: whether another try is worth it, and why. The verdict is the executor's own; only what a text names
(a path, a port, a container) is added here. Pure."""

from __future__ import annotations

import json
import re
import signal
from typing import Any, Optional

from runtime.agent.drivers.docker_answers import moment
from runtime.agent.tasks.images import PERMANENT, classify_start_error, read_engine_text
from runtime.protocol.times import from_wire

SIGNAL_BASE = 128
_NEVER = "0001-01-01"

AMBIGUOUS = ("unauthorized", "port")
"""Verdicts that a second try has been seen to overturn: a busy registry, a port of a container that is leaving."""

_HOST = (
    r"(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9A-Fa-f:]+\]"
    r"|[0-9A-Fa-f:]*::[0-9A-Fa-f:]*?|(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4})"
)
"""An address before its port; a time of day has colons, too."""

_NAMED: tuple[tuple[str, str, str], ...] = (
    ("device", "path", r'custom device "([^"]+)"'),
    ("mount", "path", r"source path does not exist: (\S+?)\.?(?:\s|$)"),
    ("conflict", "conflicting_container", r'in use by container "([0-9a-f]+)"'),
    ("conflict", "container_name", r'container name "/?([^"]+)" is already'),
    ("port", "port", rf"Bind for {_HOST}:(\d+) failed"),
    ("port", "left_over_container", r"(?m)^([0-9a-f]{64})$"),
)
"""(verdict's word, our key, where the text names it)."""

_STATE = re.compile(r'"State"\s*:\s*\{')
_CLIENT = re.compile(r"Client:.*?\n\s*Version:\s*(\S+)", re.DOTALL)
_SERVER = re.compile(r"Server:.*?\n\s*Server Version:\s*(\S+)", re.DOTALL)


ADVICE: dict[str, str] = {
    "kernel": "raise the kernel's limit that the text names (inotify watches, keys, control groups); no disk is full",
    "disk": "free space on the engine's disk (docker system df, docker image prune) or have a larger one",
    "daemon": "start Docker: systemctl status docker, journalctl -u docker",
    "ratelimit": "wait, or log in at the registry; a mirror of it has no such limit",
    "runtime": "install the vendor's container toolkit and make its runtime known to Docker, then restart Docker",
    "driver": "look at the vendor's tool on the host: its driver is not loaded, or differs from its library",
    "device": "look whether the device file is there and the card answers on the host",
    "port": "find what holds the port (ss -ltnp), or take another one",
    "conflict": "remove or rename the container that has the name",
    "mount": "make the folder on the host, or correct the volume",
    "platform": "take an image that was built for this machine's architecture",
    "reference": "correct the image's name: lower case, registry/name:tag",
    "insecure": "give the registry a certificate, or list it in insecure-registries of Docker's daemon.json",
    "certificate": "put the registry's CA below /etc/docker/certs.d/REGISTRY/ca.crt, and look at the clock",
    "unauthorized": "log in at the registry with a login that may read the image",
    "denied": "look at the image's name, then log in with a login that may read it: both are refused alike",
    "manifest": "look at name and tag: the registry has no such image",
    "network": "look at the way to the registry: DNS, proxy, firewall; then try again",
    "timeout": "try again; if it stays so, look at the way to the registry and its load",
    "server": "try again later: the registry itself has failed",
    "program": "correct the command or the image's entry point: the program is not there or may not be run",
    "unknown": "read the engine's own words: no rule knows them",
    "oom_killed": "give it more memory, or have it use less: it reached its limit",
    "killed": "look who killed it: docker stop, or the kernel for want of memory (dmesg)",
    "signalled": "look at the end of its log: a signal ended it",
    "exited": "look at the end of its log: it ended by itself",
}
"""The verdict's word, or how a container ended -> what to do."""


def parse(arguments: list[str], text: str) -> dict[str, Any]:
    """``{"kind": "permanent"|"retryable"|null, "reason"}`` and what the text names; of ``docker inspect`` how the
    container ended; ``advice`` is what to do. Both null: the text says nothing that is known."""
    state = _state(text)
    if state is not None:
        return _ended(state)
    verdict = read_engine_text(text)
    if verdict is None:
        return {"kind": None, "reason": None, **_versions(text)}
    if arguments and not {"pull", "push", "info"}.intersection(arguments):
        verdict = classify_start_error(text)
    named = {key: re.search(pattern, text) for word, key, pattern in _NAMED if word == verdict.word}
    found = {key: _value(match[1]) for key, match in named.items() if match is not None}
    ambiguous = {"ambiguous": True} if verdict.word in AMBIGUOUS else {}
    told = {"kind": verdict.kind, "reason": verdict.word, "advice": ADVICE.get(verdict.word), **ambiguous}
    return {**told, **found, **_versions(text)}


def _value(text: str) -> Any:
    return int(text) if re.fullmatch("[0-9]{1,5}", text) else text


def _versions(text: str) -> dict[str, Optional[str]]:
    client, server = _CLIENT.search(text), _SERVER.search(text)
    if client is None:
        return {}
    return {"client_version": client[1], "server_version": None if server is None else server[1]}


def _state(text: str) -> Optional[dict[str, Any]]:
    """The ``State`` of a container in a text that may be a part of ``docker inspect``."""
    begins = _STATE.search(text)
    if begins is None:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text, begins.end() - 1)
    except (ValueError, RecursionError):
        return None
    code = found.get("ExitCode") if isinstance(found, dict) else None
    return found if isinstance(code, int) and not isinstance(code, bool) else None


def _ended(state: dict[str, Any]) -> dict[str, Any]:
    code = state["ExitCode"]
    number = code - SIGNAL_BASE
    name = signal.Signals(number).name if number in {int(one) for one in signal.Signals} else None
    oom = state.get("OOMKilled")
    if state.get("Running") is True:
        reason, kind = "running", None
    elif oom is True and code != 0:
        reason, kind = "oom_killed", PERMANENT
    elif name == "SIGKILL":
        reason, kind = "killed", PERMANENT
    else:
        reason, kind = "signalled" if name else "exited", PERMANENT if code else None
    told = {"exit_code": code, "signal": name, "oom_killed": oom, "ran_seconds": _seconds(state)}
    # The host's own lack of memory sets no flag: who killed it cannot be told.
    advice = {} if kind is None else {"advice": ADVICE[reason]}
    return {"kind": kind, "reason": reason, **advice, **({"ambiguous": True} if reason == "killed" else {}), **told}


def _seconds(state: dict[str, Any]) -> Optional[float]:
    """With all nine digits that the engine writes, which the usual types of time do not hold."""
    began, ended = (str(state.get(name) or "") for name in ("StartedAt", "FinishedAt"))
    if _NEVER in began[:10] or _NEVER in ended[:10]:
        return None
    first, last = moment(began), moment(ended)
    if first is None or last is None:
        return None
    whole = from_wire(last).replace(microsecond=0) - from_wire(first).replace(microsecond=0)
    return round(whole.total_seconds() + _fraction(ended) - _fraction(began), 9)


def _fraction(text: str) -> float:
    found = re.search(r"\.(\d{1,9})", text)
    return 0.0 if found is None else float(f"0.{found[1]}")
