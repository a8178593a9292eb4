"""One node as this process holds it: the newest beat, the sections that beats may leave out, its cards.

:func:`merge` is the whole rule of digests: a section in the body replaces, one whose digest is held stays, one
whose digest is not held is asked for again, one in neither is unknown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from runtime.protocol import codec, times
from runtime.protocol.hardware import Gpu, Host
from runtime.protocol.heartbeat import STEADY, UNCHANGING, DiscoveredModel, Heartbeat, TaskHealth
from runtime.protocol.nodes import Cordon, NodeState
from runtime.server.services import card_troubles, cards_kept
from runtime.server.services import cards as card_rules
from runtime.server.services.node_view import NodeView

KEPT = ("agent", "docker", "exec_mode", "drivers", "process", "slots", "labels", "gpu_capabilities", "gpu_detection")
"""Members of every beat that are stored too, when they change."""

_HOST_FACTS = ("hostname", "os", "kernel", "cpu_cores", "memory_total_mib", "macs", "ips", "mgmt_addr")
_HOST_LOAD = ("cpu_percent", "memory_used_mib", "disks", "uptime_s")


@dataclass
class Held:
    """Guarded by the lock of its node id in Presence. Times of hearing are on the monotonic clock;
    ``seen_wall`` is the wall clock's."""

    node_id: str
    instance_id: str | None = None
    fingerprint: str | None = None
    boot_id: str | None = None
    cloned_boots: frozenset[str] = frozenset()
    run: int = 0
    seq: int = 0
    heard_at: float | None = None
    seen_wall: float | None = None
    leaving: bool = False
    state: NodeState = NodeState.ONLINE
    cordon: Cordon | None = None
    draining: bool = False
    drain_deadline: str | None = None
    drain_then: str | None = None
    beat: Heartbeat | None = None
    sections: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    steady: dict[str, str] = field(default_factory=dict)
    """Digests of the members of ``beat`` that the next beat may leave out; not stored."""
    cards: card_rules.Cards = field(default_factory=card_rules.Cards)
    dirty_cards: dict[str, card_troubles.Dirt] = field(default_factory=dict)
    foreign_cards: dict[str, str] = field(default_factory=dict)
    facts_changed: bool = False
    _view: NodeView | None = None
    _view_facts: dict[str, Any] | None = None
    _health: dict[str, TaskHealth] | None = None

    def changed(self) -> None:
        """Something that the view shows has changed."""
        self._view = self._view_facts = None

    def forget_copy(self) -> None:
        """A copy of the holder was found out. What was heard lately may be the copy's, and its cards are not this
        machine's: the holder tells its own anew."""
        self.cards, self.sections, self.digests, self.steady = card_rules.Cards(), {}, {}, {}
        self.changed()

    def view(self) -> NodeView:
        if self._view is None:
            if self._view_facts is None:
                self._view_facts = _view_facts(self)
            self._view = NodeView(**self._view_facts, **_moving(self))
        return self._view

    def task_health(self) -> dict[str, TaskHealth]:
        """uid -> what the newest beat says of the claim."""
        if self._health is None:
            entries = self.beat.task_health if self.beat is not None else None
            self._health = {entry.uid: entry for entry in entries or ()}
        return self._health

    def tells_of(self, control_plane_id: str) -> bool:
        """Whether the newest beat says what the node has seen of this control plane; one that has just come from
        another says it with its next."""
        seen = self.beat.seen_control_plane_id if self.beat is not None else None
        return seen in (None, control_plane_id)

    def is_newer(self, beat: Heartbeat) -> bool:
        return beat.run > self.run or (beat.run == self.run and beat.seq > self.seq) or self.beat is None

    def facts(self) -> dict[str, Any]:
        """What is stored of the node beside its identity: JSON."""
        stored = {name: codec.encode(value, drop_none=True) for name, value in self.sections.items()}
        if self.beat is not None:
            for name in KEPT:
                value = getattr(self.beat, name)
                if value is not None:
                    stored[name] = codec.encode(value, drop_none=True)
        cards = cards_kept.kept(self.cards)
        return stored if cards is None else {**stored, cards_kept.NAME: cards}


def merge(held: Held, beat: Heartbeat) -> list[str]:
    """Take a newer beat in; returns the sections that must be sent in full."""
    before = held.beat
    beat, send_full = _with_steady(held, beat)
    changed = False
    sections, digests = held.sections, held.digests
    for name in UNCHANGING:
        value = getattr(beat, name)
        claimed = beat.digests.get(name)
        if name == "host" and value is not None and not _is_full(value):
            # Load only: the facts are the held ones, if they are still the same.
            _merge_load(sections, value)
            value = None
            if claimed is None:
                continue
        if value is not None:
            if claimed is None or digests.get(name) != claimed or name not in sections:
                changed = True
                sections[name] = value
            elif name == "host":
                sections[name] = value
            if claimed is None:
                digests.pop(name, None)
            else:
                digests[name] = claimed
        elif claimed is None:
            if sections.pop(name, None) is not None:
                changed = True
            digests.pop(name, None)
        elif digests.get(name) != claimed:
            send_full.append(name)
    if before is None or _differ(before, beat):
        changed = True
    if changed:
        held.facts_changed = True
    if beat.foreign is not None:  # a node that could not look has not said that they are gone
        strangers = (*beat.foreign, *(beat.orphans or ()))
        held.foreign_cards = card_troubles.held_by_containers(strangers)
    dirty = card_troubles.dirt_of(beat, held.foreign_cards, held.dirty_cards, held.seen_wall)
    if changed or dirty != held.dirty_cards:
        held.dirty_cards = dirty
        held._view_facts = None
    held.beat = beat
    held.run, held.seq = beat.run, beat.seq
    held.leaving = beat.leaving
    held._view = held._health = None
    return send_full


def _with_steady(held: Held, beat: Heartbeat) -> tuple[Heartbeat, list[str]]:
    """The beat with what it left out of :data:`STEADY`, and what of it is not held. Of that the last known is kept, but
    for measurements: they are of now, or not at all."""
    left_out: dict[str, Any] = {}
    send_full: list[str] = []
    for name in STEADY:
        claimed = beat.digests.get(name)
        if getattr(beat, name) is not None or claimed is None:
            if claimed is not None:
                held.steady[name] = claimed
            else:
                held.steady.pop(name, None)
            continue
        known = held.steady.get(name) == claimed
        if not known:
            send_full.append(name)
        if held.beat is not None and (known or name != "gpu_stats"):
            left_out[name] = getattr(held.beat, name)
    return (dataclasses.replace(beat, **left_out) if left_out else beat), send_full


def _differ(before: Heartbeat, beat: Heartbeat) -> bool:
    """Whether a member that is stored with the facts has changed; of the slots only how many there are."""
    return (
        before.docker != beat.docker
        or before.exec_mode != beat.exec_mode
        or before.drivers != beat.drivers
        or before.process != beat.process
        or before.labels != beat.labels
        or before.gpu_capabilities != beat.gpu_capabilities
        or before.gpu_detection != beat.gpu_detection
        or (before.slots.total if before.slots else None) != (beat.slots.total if beat.slots else None)
        or build_of(before) != build_of(beat)
    )


def build_of(beat: Heartbeat | None) -> tuple[Any, ...] | None:
    """(version, commit, built_at, dirty) of the agent, None where it did not say."""
    if beat is None or beat.agent is None:
        return None
    return (beat.agent.version, beat.agent.commit, beat.agent.built_at, beat.agent.dirty)


def observation(held: Held) -> card_rules.Observation:
    """What the newest beat says of the cards."""
    beat = held.beat
    assert beat is not None
    return card_rules.Observation(
        gpus=held.sections.get("gpus"),
        failures=beat.gpu_collect_failures or (),
        collector_error=beat.gpu_collector_error,
        detection=beat.gpu_detection or (),
        at=held.seen_wall,
    )


def restored(stored: dict[str, Any], node_id: str, instance_id: str | None, run: int, seq: int) -> Heartbeat | None:
    """A stored node's facts as the beat that they came from; None when an older release stored other shapes."""
    try:
        return codec.decode(
            Heartbeat,
            {
                "protocol": 1,
                "node_id": node_id,
                "instance_id": instance_id or "",
                "run": run,
                "seq": seq,
                **stored,
            },
        )
    except codec.WireError:
        return None


def _is_full(host: Host) -> bool:
    return (host.hostname is not None or host.os is not None or host.cpu_cores is not None) or any(
        getattr(host, name) is not None for name in _HOST_FACTS
    )


def _merge_load(sections: dict[str, Any], load: Host) -> None:
    known = sections.get("host")
    if known is None:
        return
    facts = {name: getattr(known, name) for name in _HOST_FACTS}
    fresh = {name: getattr(load, name) for name in _HOST_LOAD}
    if fresh["disks"] is None:
        fresh["disks"] = known.disks
    sections["host"] = Host(**facts, **fresh)


def _view_facts(held: Held) -> dict[str, Any]:
    """The members of the view that stay from beat to beat."""
    sections = held.sections
    host: Host = sections.get("host") or _NO_HOST
    beat = held.beat or _NO_BEAT
    gpus: tuple[Gpu, ...] = card_rules.with_unlisted(held.cards, sections.get("gpus") or ())
    topology = sections.get("gpu_topology")
    images, engines, models = (sections.get(name) for name in ("images", "engines", "discovered_models"))
    return {
        "node_id": held.node_id,
        "state": held.state,
        "schedulable": held.cordon is None,
        "draining": held.draining,
        "cordon": held.cordon,
        "labels": beat.labels or {},
        "hostname": host.hostname,
        "mgmt_addr": host.mgmt_addr,
        "docker_available": beat.docker.available if beat.docker is not None else None,
        "exec_mode": beat.exec_mode,
        "process_driver": "process" in (beat.drivers or ()),
        "slots_total": beat.slots.total if beat.slots is not None else 0,
        "cpu_cores": host.cpu_cores,
        "memory_total_mib": host.memory_total_mib,
        "gpus": gpus,
        "cards_known": "gpus" in sections or bool(gpus),
        "card_health": card_rules.health(held.cards, gpus, held.dirty_cards),
        "card_troubles": card_troubles.troubles(held.cards, gpus, held.dirty_cards),
        "capabilities": {entry.uuid: entry for entry in beat.gpu_capabilities or ()},
        "collector_error": held.cards.collector_why or None,
        "collector_failing": held.cards.collector_failing,
        "collector_since": times.from_epoch(held.cards.collector_since) if held.cards.collector_since else None,
        "nvlink_domains": tuple(frozenset(d) for d in topology.nvlink_domains) if topology is not None else (),
        "images": frozenset(images) if images is not None else None,
        "engines": frozenset(engine.name for engine in engines) if engines is not None else None,
        "models": frozenset(models_of(models)) if models is not None else None,
        "instance_id": held.instance_id,
    }


def models_of(models: Iterable[DiscoveredModel]) -> Iterator[str]:
    """What a task may call the models that a node offers: names and paths."""
    for model in models:
        if model.state != "incomplete":
            yield model.name
            if model.path is not None:
                yield model.path


def _moving(held: Held) -> dict[str, Any]:
    """The members of the view that every beat changes."""
    live = held.beat.live_task_ids if held.beat is not None else None
    notes = held.beat.gpu_notes if held.beat is not None else None
    return {
        "card_notes": tuple(notes or ()),
        "last_seen_at": times.from_epoch(held.seen_wall) if held.seen_wall is not None else None,
        "run": held.run,
        "boot_id": held.boot_id,
        "live_task_ids": frozenset(live) if live is not None else None,
    }


_NO_HOST = Host()
_NO_BEAT = Heartbeat(0, "", "", 0, 0)
