"""The running tasks that may be engines, and what each says it serves."""

from __future__ import annotations

import http.client
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Optional

from runtime.agent.drivers.errors import DriverError
from runtime.agent.engines.served import Served, ServedModel, read_served
from runtime.agent.tasks.records import Stage
from runtime.protocol.heartbeat import DiscoveredModel
from runtime.protocol.paths import is_within, target_name
from runtime.protocol.states import Driver, Kind
from runtime.protocol.tasks import TaskSpec, Volume

if TYPE_CHECKING:
    from runtime.agent.tasks.held import Held
    from runtime.agent.tasks.parts import Claims, Parts

PATH = "/v1/models"
TIMEOUT_S = 2.0
TOTAL_S = 5.0
ANSWER_LIMIT = 1 << 20
PORTS_ASKED = 3


@dataclass(frozen=True)
class Server:
    """A running task. ``ready``: its probe's newest word, None without one. ``address`` may ask the driver."""

    name: str
    ports: tuple[int, ...]
    ready: Optional[bool]
    volumes: tuple[Volume, ...]
    address: Callable[[], Optional[str]]


def servers(parts: Parts, claims: Claims) -> list[Server]:
    """Running inference tasks in containers, from memory."""
    return [
        Server(
            held.name,
            ports_of(held.record.spec),
            held.probe.ready if held.probe is not None else None,
            tuple(held.record.spec.volumes),
            lambda held=held: _address(parts, held),  # type: ignore[misc]
        )
        for held in claims.all()
        if held.record.stage is Stage.RUNNING
        and held.record.driver is Driver.DOCKER
        and held.record.spec.kind is Kind.INFERENCE
    ]


def ports_of(spec: TaskSpec) -> tuple[int, ...]:
    """Where its engine may listen: where its health is asked for, else what it publishes."""
    if spec.health is not None:
        return (spec.health.port,)
    return tuple(port.container for port in spec.ports)[:PORTS_ASKED]


def _address(parts: Parts, held: Held) -> Optional[str]:
    from runtime.agent.tasks.watch import LOOPBACK

    if held.address is not None or held.record.container_id is None:
        return held.address
    try:
        facts = parts.driver_of(held).inspect(held.record.container_id)
    except DriverError:
        return None
    return LOOPBACK if facts.network_mode == "host" else facts.address


def read_models(server: Server, clock: Callable[[], float] = time.monotonic) -> Optional[list[DiscoveredModel]]:
    """What it serves; None when nothing of the kind was answered, which is not "nothing"."""
    address = server.address()
    for port in server.ports if address is not None else ():
        try:
            served = read_served(_get(str(address), port, clock))
        except (OSError, http.client.HTTPException, ValueError):
            continue
        return models_of(served, server.volumes)
    return None


def models_of(served: Served, volumes: Sequence[Volume]) -> list[DiscoveredModel]:
    """As the heartbeat tells them: served now, so whole; the path is the node's, where a volume tells it."""
    return [
        DiscoveredModel(one.id, host_path(one, volumes), source="engine", state="complete") for one in served.models
    ]


def host_path(model: ServedModel, volumes: Sequence[Volume]) -> Optional[str]:
    """Where the node keeps what the engine has loaded, by the task's volumes. Pure."""
    path = model.root if model.root is not None else model.id
    if not path.startswith("/"):
        return None
    around = [volume for volume in volumes if is_within(path, target_name(volume.container))]
    if not around:
        return None
    inner = max(around, key=lambda volume: len(target_name(volume.container)))
    rest = path[len(target_name(inner.container).rstrip("/")) :].rstrip("/")
    return inner.host.rstrip("/") + rest


def _get(address: str, port: int, clock: Callable[[], float]) -> str:
    """The answer's text, asked for directly whatever proxies there are. Raises OSError, HTTPException, ValueError."""
    until = clock() + TOTAL_S
    connection = http.client.HTTPConnection(address, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", PATH, headers={"Connection": "close", "User-Agent": "heterofleet-agent"})
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"answered {response.status}")
        data = b""
        while clock() < until:
            piece = response.read1(65536)
            if not piece:
                return data.decode("utf-8", "replace")
            data += piece
            if len(data) > ANSWER_LIMIT:
                raise ValueError("a longer answer than is read")
        raise TimeoutError
    finally:
        connection.close()
