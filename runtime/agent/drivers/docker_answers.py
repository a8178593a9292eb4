"""The engine's answers in our words. Pure; an answer of another shape is EngineUnavailable: nothing is known by it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Optional

from runtime.agent.drivers.driver import LABEL_CARDS, LABEL_UID, EngineFacts, Facts, Seen
from runtime.agent.drivers.errors import EngineUnavailable
from runtime.protocol.times import from_wire

CARDS_VARIABLE = "NVIDIA_VISIBLE_DEVICES="
NO_CARDS = ("", "void", "none", "all")
LAST_SECOND = 253402300800.0
"""The end of the year 9999."""

_NEVER = "0001-01-01"


@contextmanager
def reading(what: str) -> Iterator[None]:
    """What the block cannot make sense of is no answer. ``what``: what was asked about."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise EngineUnavailable(f"the engine's answer about {what} has an unknown shape") from error


def engine_of(info: Any) -> EngineFacts:
    """``GET /info``."""
    with reading("itself"):
        return EngineFacts(
            id=_text(info.get("ID")) or None,
            version=_text(info.get("ServerVersion")) or None,
            runtimes=tuple(sorted(_text(name) for name in info.get("Runtimes") or ())),
            root_dir=_text(info.get("DockerRootDir")) or None,
            live_restore=bool(info.get("LiveRestoreEnabled")),
        )


def listing_of(rows: Any) -> list[Seen]:
    """``GET /containers/json``. One row that cannot be read makes the whole list unknown: it may be anybody's."""
    with reading("containers"):
        if not isinstance(rows, list):
            raise TypeError(rows)
        return [
            Seen(
                id=_id(row["Id"]),
                name=_text((row.get("Names") or ["/"])[0]).lstrip("/"),
                state=_text(row.get("State") or ""),
                labels=_labels(row.get("Labels")),
                created_at=_seconds(row.get("Created")),
            )
            for row in rows
        ]


def created_of(answer: Any) -> str:
    """``POST /containers/create``: the new container's full id."""
    with reading("a new container"):
        return _id(answer["Id"])


def bridge_made_at(network: Any) -> Optional[str]:
    """``GET /networks/bridge``."""
    with reading("its bridge"):
        return moment(network.get("Created"))


def facts_of(document: Any) -> Facts:
    """``GET /containers/{id}/json``."""
    with reading("a container"):
        state = document["State"]
        config = document.get("Config") or {}
        host = document.get("HostConfig") or {}
        networks = (document.get("NetworkSettings") or {}).get("Networks") or {}
        addresses = [_text(network["IPAddress"]) for network in networks.values() if network.get("IPAddress")]
        code = state.get("ExitCode")
        return Facts(
            id=_id(document["Id"]),
            name=_text(document.get("Name") or "").lstrip("/"),
            state=_text(state["Status"]),
            running=state["Running"] is True,
            exit_code=None if code is None else int(code),
            error=_text(state.get("Error") or ""),
            oom_killed=state.get("OOMKilled") is True,
            started_at=moment(state.get("StartedAt")),
            finished_at=moment(state.get("FinishedAt")),
            labels=_labels(config.get("Labels")),
            pid=int(state.get("Pid") or 0),
            stop_signal=_text(config.get("StopSignal") or "SIGTERM"),
            address=addresses[0] if addresses else None,
            network_mode=_text(host.get("NetworkMode") or ""),
            cards=_cards(config, host),
            sources=tuple(_text(mount.get("Source") or "") for mount in host.get("Mounts") or ()),
            restarts=_text((host.get("RestartPolicy") or {}).get("Name") or "no") != "no",
            restarted=int(document.get("RestartCount") or 0),
        )


def stat_of(header: str) -> dict[str, Any]:
    """The header that describes a path in a container: ``mode`` in the engine's bits, ``mtime``."""
    with reading("a path"):
        found = json.loads(base64.b64decode(header))
        return {"mode": int(found["mode"]), "mtime": from_wire(str(found["mtime"]))}


def names_of(rows: Any) -> list[str]:
    """``GET /images/json``: every reference."""
    with reading("images"):
        names: set[str] = set()
        for row in rows:
            for name in [*(row.get("RepoTags") or ()), *(row.get("RepoDigests") or ())]:
                if not _text(name).startswith("<none>"):
                    names.add(name)
        return sorted(names)


@dataclass(frozen=True)
class ContainerEvent:
    """What happened to a container of ours: ``what`` is the engine's word, ``signal`` a number where one was sent."""

    what: str
    container_id: str
    uid: str
    signal: Optional[int] = None


def event_of(line: bytes) -> Optional[ContainerEvent]:
    """One line of ``GET /events``; None when it is no event of a container of ours."""
    try:
        document = json.loads(line)
        attributes = document["Actor"]["Attributes"]
        uid, signal = attributes.get(LABEL_UID), str(attributes.get("signal", ""))
        container_id, what = document["Actor"].get("ID", ""), document.get("Action", "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not all(isinstance(text, str) for text in (uid, container_id, what)) or not uid:
        return None
    return ContainerEvent(what, container_id, uid, int(signal) if signal.isdigit() else None)


def signalled_before_end(events: Iterable[Optional[ContainerEvent]]) -> Optional[bool]:
    """Of one container's events, in their order: whether a signal came between its last start and its end. None when
    there was no end, or the start is not among them, and so perhaps the signal is not either."""
    started = signalled = False
    verdict: Optional[bool] = None
    for event in events:
        if event is None:
            continue
        if event.what == "start":
            started, signalled, verdict = True, False, None
        elif event.what == "kill" and verdict is None:
            signalled = True
        elif event.what == "die":
            verdict = True if signalled else False if started else None
    return verdict


def moment(text: Any) -> Optional[str]:
    """A time of the engine's as it says it; None where there was no such moment. Years far from ours count: a clock
    may be wrong."""
    if not isinstance(text, str) or not text or text.startswith(_NEVER):
        return None
    try:
        from_wire(text)
    except (ValueError, OverflowError):
        return None
    return text


def _cards(config: dict[str, Any], host: dict[str, Any]) -> tuple[str, ...]:
    """By the device requests, else by the variable of NVIDIA's runtime; and those that only a label of ours names."""
    asked = [str(name) for request in host.get("DeviceRequests") or () for name in request.get("DeviceIDs") or ()]
    said = [item[len(CARDS_VARIABLE) :] for item in config.get("Env") or () if item.startswith(CARDS_VARIABLE)]
    words = asked or [word for value in said for word in value.split(",")]
    words = [*words, *_text((config.get("Labels") or {}).get(LABEL_CARDS)).split(",")]
    return tuple(sorted({word for word in words if word not in NO_CARDS}))


def _labels(found: Any) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in (found or {}).items()}


def _seconds(found: Any) -> float:
    """Since the epoch; 0 for what no calendar holds."""
    seconds = float(found or 0)
    return seconds if 0 <= seconds < LAST_SECOND else 0.0


def _id(found: Any) -> str:
    if not isinstance(found, str) or not found:
        raise TypeError(found)
    return found


def _text(found: Any) -> str:
    if found is not None and not isinstance(found, str):
        raise TypeError(found)
    return found or ""
