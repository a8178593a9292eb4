"""Why a card is not given out: since when, what was said of it, and what would help. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime.protocol.hardware import Gpu, GpuHolder
from runtime.protocol.heartbeat import Foreign, Heartbeat
from runtime.protocol.nodes import CardHealth
from runtime.protocol.times import from_epoch, to_wire
from runtime.server.services.cards import Cards, Track, health

_BACK = {
    CardHealth.SUSPECT: "it comes back by itself with the next beat in which it is well",
    CardHealth.LOST: "it comes back by itself once it was well for some beats in a row (card_back_after_beats)",
}
_ASK = "`heterofleet-agent doctor` on its node says what its tool says"
_END = (
    "end what holds it (memory of no process goes with `nvidia-smi --gpu-reset` or a reboot): it is free again "
    "with the next beat that does not tell of it"
)
_MORE = 3
"""So many holders are named."""


@dataclass(frozen=True)
class Dirt:
    """What else than our allocations holds a card. ``since``: seconds since 1970, when a beat told of it first."""

    who: str
    since: float | None = None


@dataclass(frozen=True)
class Trouble:
    """Of one card or slice that is not well. ``since`` is RFC 3339; None where nobody knows."""

    card: str
    health: CardHealth
    since: str | None
    reason: str
    help: str

    @property
    def text(self) -> str:
        """A sentence without its full stop."""
        return f"card {self.card} is {self.health.value}" + (f" since {self.since}" if self.since else "") + self._why()

    def _why(self) -> str:
        return f" ({self.reason})" if self.reason else ""


def troubles(cards: Cards, gpus: Sequence[Gpu], dirty: Mapping[str, Dirt]) -> dict[str, Trouble]:
    """Card or slice -> what is wrong with it; those that are well have no entry."""
    found = {}
    for uuid, state in health(cards, gpus, dirty).items():
        if state is not CardHealth.OK:
            gpu = next(one for one in gpus if one.uuid == uuid)
            found[uuid] = _trouble(gpu, state, cards, dirty)
    return found


def plain(uuid: str, state: CardHealth) -> Trouble:
    """Where nothing but the word is known."""
    return Trouble(uuid, state, None, "", _ASK)


def dirt_of(
    beat: Heartbeat, foreign: Mapping[str, str], before: Mapping[str, Dirt], at: float | None
) -> dict[str, Dirt]:
    """Card -> what else holds it by this beat. ``foreign``: what containers of others hold, as was told last."""
    who: dict[str, list[str]] = {uuid: [words] for uuid, words in foreign.items()}
    for holder in beat.gpu_holders or ():
        if holder.ours is False:
            who.setdefault(holder.uuid, []).append(_holder(holder))
    return {
        uuid: Dirt(_few(words), before[uuid].since if uuid in before else at) for uuid, words in sorted(who.items())
    }


def held_by_containers(containers: Sequence[Foreign]) -> dict[str, str]:
    """Card -> the containers that are no task's of this node."""
    who: dict[str, list[str]] = {}
    for container in containers:
        task = f" of task {container.task_id}" if container.task_id else ""
        for uuid in container.gpus:
            who.setdefault(uuid, []).append(f"container {container.container_id[:12]}{task}, which is not this node's")
    return {uuid: _few(words) for uuid, words in who.items()}


def _few(words: Sequence[str]) -> str:
    more = f" and {len(words) - _MORE} more" if len(words) > _MORE else ""
    return " and ".join(words[:_MORE]) + more


def _holder(holder: GpuHolder) -> str:
    if holder.pid is None:
        return f"{holder.memory_mib} MiB in use by no process" if holder.memory_mib else "memory in use by no process"
    name = f" ({holder.name})" if holder.name else ""
    container = f" in container {holder.container_id[:12]}" if holder.container_id else ""
    return f"process {holder.pid}{name}{container}"


def _trouble(gpu: Gpu, state: CardHealth, cards: Cards, dirty: Mapping[str, Dirt]) -> Trouble:
    own, parent = cards.tracks.get(gpu.uuid), cards.tracks.get(gpu.parent_uuid or gpu.uuid)
    if state is CardHealth.UNKNOWN:
        reason = "no working list of its node's card tool has named it since the control plane started"
        return Trouble(gpu.uuid, state, None, reason, _ASK)
    if state is CardHealth.DIRTY:
        key = gpu.uuid if gpu.uuid in dirty else gpu.parent_uuid or ""
        what = "" if key == gpu.uuid else f"its card {key} is "
        return Trouble(gpu.uuid, state, _time(dirty[key].since), f"{what}held by {dirty[key].who}", _END)
    for track in (own, parent):
        if track is not None and track.state is state:
            return Trouble(gpu.uuid, state, _time(track.since), _reason(gpu, track), _help(track))
    shrunk = cards.shrunken.get(gpu.vendor)
    if shrunk is None:
        return plain(gpu.uuid, state)
    reason = f"{shrunk.why}, and by index alone nobody can tell which is gone"
    return Trouble(gpu.uuid, state, _time(shrunk.since), reason, f"bring the missing card back; {_ASK}")


def _reason(gpu: Gpu, track: Track) -> str:
    of_card = f"its card {track.gpu.uuid}: " if track.gpu.uuid != gpu.uuid else ""
    well = f"; well for {track.good} beat{'s' if track.good > 1 else ''} by now" if track.good else ""
    return f"{of_card}{track.why}{well}"


def _help(track: Track) -> str:
    back = _BACK[track.state]
    if not track.listed:
        return f"look for it on its node (`lspci`, the kernel's log): {back}"
    return f"{back}; {_ASK}"


def _time(seconds: float | None) -> str | None:
    return to_wire(from_epoch(seconds)) if seconds is not None else None
