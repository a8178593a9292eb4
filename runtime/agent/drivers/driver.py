"""What the way of a task needs of the thing that runs it. Docker is one such thing; plain processes another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol

if TYPE_CHECKING:
    from runtime.agent.drivers.images import DockerImages
    from runtime.agent.drivers.output import LogPiece, LogRest
    from runtime.protocol.hardware import Gpu

LABEL_PREFIX = "heterofleet."
LABEL_CONTROL_PLANE = LABEL_PREFIX + "control-plane"
LABEL_NODE = LABEL_PREFIX + "node"
LABEL_INSTANCE = LABEL_PREFIX + "instance"
LABEL_TASK = LABEL_PREFIX + "task"
LABEL_UID = LABEL_PREFIX + "uid"
LABEL_ATTEMPT = LABEL_PREFIX + "attempt"
LABEL_CLAIM = LABEL_PREFIX + "claim"
LABEL_DEADLINE = LABEL_PREFIX + "deadline"
LABEL_CARDS = LABEL_PREFIX + "cards"
LABEL_GIVEN = LABEL_PREFIX + "given"
"""Uuids of cards that went to the container by device files or numbers, and which those are."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where a task's program is looked for when nobody says where."""


@dataclass(frozen=True)
class Seen:
    """One container of ours in a listing. ``state`` is the engine's word: created, running, paused,
    restarting, removing, exited, dead. ``created_at`` in seconds since the epoch."""

    id: str
    name: str
    state: str
    labels: dict[str, str]
    created_at: float = 0.0

    @property
    def uid(self) -> str:
        return self.labels.get(LABEL_UID, "")

    @property
    def attempt(self) -> int:
        text = self.labels.get(LABEL_ATTEMPT, "")
        return int(text) if text.isdigit() else -1

    @property
    def claim_token(self) -> str:
        return self.labels.get(LABEL_CLAIM, "")


@dataclass(frozen=True)
class Facts:
    """What an inspection says. ``started_at`` and ``finished_at`` are None when there was no such moment;
    ``cards`` are the UUIDs of the cards that it was given one by one; ``sources`` are those of its bind mounts.
    ``restarts``: somebody told the engine to start it again when it ends; ``restarted`` counts how often it did."""

    id: str
    name: str
    state: str
    running: bool
    exit_code: Optional[int]
    error: str
    oom_killed: bool
    started_at: Optional[str]
    finished_at: Optional[str]
    labels: dict[str, str]
    pid: int = 0
    stop_signal: str = "SIGTERM"
    address: Optional[str] = None
    network_mode: str = ""
    cards: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    restarts: bool = False
    restarted: int = 0

    @property
    def ended(self) -> bool:
        return self.state in ("exited", "dead") and not self.running


@dataclass(frozen=True)
class Mount:
    """A bind mount whose source went through the fence."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True)
class ContainerPlan:
    """A container as it shall be. ``env`` is complete: what the task said, and over it what the agent owns;
    ``unset`` names what the image must not say either. ``host_config`` holds parts of the engine's host configuration
    that give cards, ``files`` their device files among them; ``shown`` is mounted read-only where it is on the host;
    ``gpus`` are the cards themselves."""

    name: str
    image: str
    labels: dict[str, str]
    env: dict[str, str] = field(default_factory=dict, repr=False)
    unset: tuple[str, ...] = ()
    entrypoint: Optional[list[str]] = None
    command: Optional[list[str]] = None
    workdir: Optional[str] = None
    user: Optional[str] = None
    mounts: tuple[Mount, ...] = ()
    ports: tuple[tuple[int, Optional[int]], ...] = ()
    network: str = "bridge"
    cpus: Optional[float] = None
    memory_mib: Optional[int] = None
    shm_mib: Optional[int] = None
    ipc_host: bool = False
    log_max_mib: int = 50
    host_config: dict[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True)
class EngineFacts:
    """Who answers: one engine and its identity. ``live_restore``: its containers outlive its own restarts."""

    id: Optional[str]
    version: Optional[str]
    runtimes: tuple[str, ...] = ()
    root_dir: Optional[str] = None
    live_restore: bool = False


@dataclass(frozen=True)
class RunTimes:
    """An engine's present run and the end of the one before, in seconds of the machine's monotonic clock.
    ``stopping``: when that end began, None when there was none."""

    stopping: Optional[float]
    began: float
    ready: float


class Driver(Protocol):
    """Every call has a deadline and raises DriverError. ``list_own`` is one call, whatever it finds.

    ``images`` is None where tasks need no image. ``confined``: tasks are kept from what they were not given.
    ``outlives_machine``: what it made is still listed after a restart of the machine; the output is, in any case.
    ``has_traces``: something on this machine shows that it is here, answering or not.
    """

    @property
    def confined(self) -> bool: ...
    @property
    def outlives_machine(self) -> bool: ...
    @property
    def images(self) -> Optional[DockerImages]: ...
    def has_traces(self) -> bool: ...
    def engine(self) -> EngineFacts: ...
    def wall(self) -> float: ...
    def started_at(self) -> Optional[str]: ...
    def run_times(self) -> Optional[RunTimes]: ...
    def ended_by_itself(self, container_id: str) -> bool: ...
    def was_signalled(self, container_id: str) -> Optional[bool]: ...
    def list_own(self) -> list[Seen]: ...
    def inspect(self, container_id: str) -> Facts: ...
    def create(self, plan: ContainerPlan, spare_name: str) -> str: ...
    def start(self, container_id: str) -> None: ...
    def signal(self, container_id: str, signal: str) -> bool: ...
    def never_restart(self, container_id: str) -> None: ...
    def remove(self, container_id: str, force: bool = False) -> None: ...
    def missing_program(self, container_id: str) -> Optional[str]: ...
    def changed_ns(self, container_id: str, path: str) -> Optional[int]: ...
    def log_rest(self, container_id: str, limit_bytes: int, after: str = "", thorough: bool = True) -> LogRest: ...
    def log_follow(
        self, container_id: str, after: str, on_open: Callable[[Callable[[], None]], None]
    ) -> Iterator[LogPiece]: ...
    def events(self, on_open: Callable[[Callable[[], None]], None]) -> Iterator[str]: ...
