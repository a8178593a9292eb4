"""What the server concludes about the health of a node's cards: pure, one step per beat in order.

A card is condemned only by what names it: its collector says so for several beats in a row, or a list that
worked lacks it for several beats in a row (where the detector has stable keys). A collector that failed as a
whole condemns nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Optional

from runtime.protocol.hardware import Gpu, GpuCollectFailure, GpuDetection, named_as_failed
from runtime.protocol.nodes import CardHealth, EventKind

COLLECTOR_FAILING_AFTER = 3
"""Beats in a row whose collector failed as a whole; from then on the node gets no new card work, and nobody can say
how its cards are."""
COLLECTOR_ERROR = "gpu_collector_error"
COLLECTOR_GOOD = "gpu_collector_good"
"""Codes of the events that say when that begins and ends."""
NO_KEYS = "none"
"""``loss_detection`` of a detector that knows its cards by index only."""


@dataclass(frozen=True)
class Limits:
    """In beats."""

    lost_after: int = 3
    back_after: int = 3


@dataclass(frozen=True)
class Track:
    """One whole card over time, or a slice that was named as failed. ``gpu`` is how it was listed last; ``since`` when
    (seconds since 1970) it was not well first, ``why`` what was said of it last; None and nothing while it is well."""

    gpu: Gpu
    listed: bool = True
    failed: int = 0
    absent: int = 0
    good: int = 0
    state: CardHealth = CardHealth.OK
    since: Optional[float] = None
    why: str = ""


@dataclass(frozen=True)
class Shrunk:
    """A list without stable keys that got shorter."""

    since: Optional[float]
    why: str


@dataclass(frozen=True)
class Cards:
    """All cards of a node, and those slices that are not well by themselves (any other has its card's health).
    ``collector_errors`` counts beats in a row whose collector failed as a whole; ``collector_since`` is when the first
    of them came, ``collector_why`` what the newest says."""

    tracks: Mapping[str, Track] = field(default_factory=dict)
    collector_errors: int = 0
    collector_since: Optional[float] = None
    collector_why: str = ""
    shrunken: Mapping[str, Shrunk] = field(default_factory=dict)
    """Vendors without stable keys whose list got shorter: all their cards are suspect."""

    @property
    def collector_failing(self) -> bool:
        return self.collector_errors >= COLLECTOR_FAILING_AFTER


@dataclass(frozen=True)
class Observation:
    """What one beat says of the cards. ``gpus`` None: the list is unknown. ``at``: seconds since 1970."""

    gpus: Sequence[Gpu] | None
    failures: Sequence[GpuCollectFailure] = ()
    collector_error: str | None = None
    detection: Sequence[GpuDetection] = ()
    at: float | None = None


@dataclass(frozen=True)
class Change:
    """Something to tell: becomes an event; ``lost`` also takes scheduled work off the card. ``code``: stable within the
    kind, where that has several."""

    kind: EventKind
    uuid: str | None
    detail: str
    code: str | None = None


def advance(cards: Cards, seen: Observation, limits: Limits) -> tuple[Cards, list[Change]]:
    """The cards after this beat, and what changed."""
    if seen.collector_error is not None:
        return _without_collector(cards, seen.collector_error, seen.at)
    changes: list[Change] = []
    if cards.collector_failing:
        changes.append(Change(EventKind.NODE_STATE, None, "the card tool works again", COLLECTOR_GOOD))
    if seen.gpus is None:
        return replace(cards, collector_errors=0, collector_since=None, collector_why=""), changes
    if _nothing_new(cards, seen):
        return cards, []

    whole = {gpu.uuid: gpu for gpu in seen.gpus if gpu.parent_uuid is None}
    slices = {gpu.uuid: gpu for gpu in seen.gpus if gpu.parent_uuid is not None}
    failed = _failed(whole, slices, cards, seen)
    keyless = {entry.vendor for entry in seen.detection if entry.found and entry.loss_detection == NO_KEYS}
    tracks: dict[str, Track] = {}
    shrunken: dict[str, Shrunk] = {}
    for uuid, track in cards.tracks.items():
        vendor = track.gpu.vendor
        if track.gpu.parent_uuid is not None:
            continue
        if uuid not in whole and vendor in keyless:
            # By index only: which card is gone cannot be told, so none is condemned and all are doubted.
            now = [gpu for gpu in whole.values() if gpu.vendor == vendor]
            before = [
                other for other in cards.tracks.values() if other.gpu.vendor == vendor and other.gpu.parent_uuid is None
            ]
            why = f"{len(now)} of {len(before)} {vendor} cards are listed"
            if vendor not in cards.shrunken and vendor not in shrunken:
                changes.append(Change(EventKind.CARDS_MISSING, None, why))
            former = cards.shrunken.get(vendor)
            shrunken[vendor] = Shrunk(former.since if former is not None else seen.at, why)
            tracks[uuid] = replace(track, listed=False)
            continue
        tracks[uuid] = _step(
            replace(track, gpu=whole.get(uuid, track.gpu), listed=uuid in whole),
            failed.get(uuid),
            limits,
            changes,
            seen.at,
        )
    for uuid, gpu in whole.items():
        if uuid not in tracks:
            tracks[uuid] = _step(Track(gpu), failed.get(uuid), limits, changes, seen.at)
    for uuid, gpu in slices.items():
        # A slice comes and goes with what is made of its card: that it is not listed says nothing.
        if uuid in failed or uuid in cards.tracks:
            known = replace(cards.tracks.get(uuid) or Track(gpu), gpu=gpu)
            track = _step(known, failed.get(uuid), limits, changes, seen.at)
            if track.state is not CardHealth.OK:
                tracks[uuid] = track
    return Cards(tracks, shrunken=shrunken), changes


def health(cards: Cards, gpus: Sequence[Gpu], dirty: Collection[str]) -> dict[str, CardHealth]:
    """The health of each card and slice in ``gpus``. ``dirty``: held by something that is not our allocation."""
    result: dict[str, CardHealth] = {}
    for gpu in gpus:
        key = gpu.parent_uuid or gpu.uuid
        track, own = cards.tracks.get(key), cards.tracks.get(gpu.uuid)
        state = track.state if track is not None else CardHealth.UNKNOWN
        if own is not None and CardHealth.LOST in (state, own.state):
            state = CardHealth.LOST
        elif own is not None and own.state is CardHealth.SUSPECT:
            state = CardHealth.SUSPECT
        if state is CardHealth.OK:
            if gpu.vendor in cards.shrunken:
                state = CardHealth.SUSPECT
            elif gpu.uuid in dirty or key in dirty:
                state = CardHealth.DIRTY
        result[gpu.uuid] = state
    return result


def with_unlisted(cards: Cards, listed: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The list, with the cards that a working one no longer names where they were: they are still shown, with what is
    known of them."""
    found = list(listed)
    gone = {track.gpu.uuid: track.gpu for track in cards.tracks.values() if not track.listed}
    for gpu in sorted(gone.values(), key=lambda one: -1 if one.index is None else one.index):
        found.insert(_place(gpu, found, gone), gpu)
    return tuple(found)


def _place(lost: Gpu, gpus: Sequence[Gpu], gone: Mapping[str, Gpu]) -> int:
    """Before the next card of its vendor, by index; else behind all of them. Where a listed card has the index of one
    that is gone, those behind it have moved up."""
    of_vendor = [at for at, gpu in enumerate(gpus) if gpu.vendor == lost.vendor]
    taken = {gpus[at].index for at in of_vendor if gpus[at].uuid not in gone and gpus[at].parent_uuid is None}
    moved = any(gpu.index in taken for gpu in gone.values() if gpu.vendor == lost.vendor)
    passed = 0
    for at in of_vendor:
        gpu = gpus[at]
        if gpu.uuid in gone:
            passed += 1
            continue
        index = gpu.index if gpu.parent_uuid is None else None
        if index is not None and lost.index is not None and index + (passed if moved else 0) >= lost.index:
            return at
    return of_vendor[-1] + 1 if of_vendor else len(gpus)


def _without_collector(cards: Cards, error: str, at: float | None) -> tuple[Cards, list[Change]]:
    """No card is condemned by it; from the third beat on none is said to be well either."""
    errors = cards.collector_errors + 1
    since = at if cards.collector_errors == 0 else cards.collector_since
    changes = []
    if errors == COLLECTOR_FAILING_AFTER:
        text = f"nobody can say how the cards are: the card tool fails, {errors} beats in a row: {error}"
        changes.append(Change(EventKind.NODE_STATE, None, text, COLLECTOR_ERROR))
    return replace(cards, collector_errors=errors, collector_since=since, collector_why=error), changes


def _nothing_new(cards: Cards, seen: Observation) -> bool:
    # Nearly every beat of nearly every node: same list, nothing failed, all well.
    if seen.failures or cards.collector_errors or cards.shrunken or seen.gpus is None:
        return False
    whole = [gpu for gpu in seen.gpus if gpu.parent_uuid is None]
    if len(whole) != len(cards.tracks):
        return False
    for gpu in whole:
        track = cards.tracks.get(gpu.uuid)
        if track is None or track.gpu is not gpu or track.state is not CardHealth.OK or track.failed or track.absent:
            return False
    return True


def _failed(whole: Mapping[str, Gpu], slices: Mapping[str, Gpu], cards: Cards, seen: Observation) -> dict[str, str]:
    """Of what this node has or had; a word on anything else says nothing."""
    named = named_as_failed(whole.values(), seen.failures)
    return {uuid: why for uuid, why in named.items() if uuid in whole or uuid in slices or uuid in cards.tracks}


def _step(track: Track, failure: str | None, limits: Limits, changes: list[Change], at: float | None) -> Track:
    uuid = track.gpu.uuid
    if failure is None and track.listed:
        good = track.good + 1 if track.state is not CardHealth.OK else 0
        if track.state is CardHealth.LOST and good < limits.back_after:
            return replace(track, failed=0, absent=0, good=good)
        if track.state is CardHealth.LOST:
            changes.append(Change(EventKind.GPU_RETURNED, uuid, f"well for {good} beats in a row"))
        return replace(track, failed=0, absent=0, good=0, state=CardHealth.OK, since=None, why="")
    failed = track.failed + 1 if failure is not None else 0
    absent = track.absent + 1 if not track.listed and failure is None else 0
    why = failure or "a list that worked lacks it"
    state, since = track.state, at if track.state is CardHealth.OK else track.since
    if state is not CardHealth.LOST and max(failed, absent) >= limits.lost_after:
        state = CardHealth.LOST
        changes.append(Change(EventKind.GPU_LOST, uuid, f"{why}, {max(failed, absent)} beats in a row"))
    elif state is CardHealth.OK:
        state = CardHealth.SUSPECT
        changes.append(Change(EventKind.GPU_SUSPECT, uuid, why))
    return replace(track, failed=failed, absent=absent, good=0, state=state, since=since, why=why)
