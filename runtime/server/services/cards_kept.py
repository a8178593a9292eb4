"""The cards of a node that are not well, as they are stored: a restart of the server, or another of its processes, must
not take a lost card for a good one. Pure.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Optional

from runtime.protocol import codec
from runtime.protocol.nodes import CardHealth
from runtime.server.services.cards import COLLECTOR_FAILING_AFTER, Cards, Shrunk, Track

NAME = "card_tracks"
"""The member of a node's stored facts."""
GONE_S = 7 * 86400.0
"""A card that was gone for a week was taken out: it is not looked for again."""


@dataclass(frozen=True)
class Failing:
    """A card tool that fails as a whole."""

    since: Optional[float] = None
    why: str = ""


@dataclass(frozen=True)
class Kept:
    tracks: list[Track] = field(default_factory=list)
    shrunken: dict[str, Shrunk] = field(default_factory=dict)
    collector: Optional[Failing] = None


def kept(cards: Cards) -> dict[str, Any] | None:
    """What is stored: JSON, None when all is well."""
    tracks = [track for track in cards.tracks.values() if track.state is not CardHealth.OK or not track.listed]
    if not tracks and not cards.shrunken and not cards.collector_failing:
        return None
    collector = Failing(cards.collector_since, cards.collector_why) if cards.collector_failing else None
    stored: dict[str, Any] = codec.encode(Kept(tracks, dict(cards.shrunken), collector), drop_none=True)
    return stored


def conditions(cards: Cards) -> frozenset[tuple[str, str, bool]]:
    """What has to be stored anew when it changes; the counts in between are not worth a write."""
    found = {(uuid, track.state.value, track.listed) for uuid, track in cards.tracks.items()}
    return frozenset({one for one in found if one[1:] != (CardHealth.OK.value, True)}).union(
        [(vendor, "", False) for vendor in cards.shrunken], [("", "collector", True)] if cards.collector_failing else []
    )


def restored(cards: Cards, stored: Any, now: float) -> Cards:
    """``cards``, all well as far as their list tells, with what was stored of them."""
    if stored is None:
        return cards
    try:
        known = codec.decode(Kept, stored)
    except codec.WireError:
        return cards  # another release stored another shape
    tracks = dict(cards.tracks)
    for track in known.tracks:
        if track.listed or now - (track.since or now) < GONE_S:
            listed = tracks.get(track.gpu.uuid)
            tracks[track.gpu.uuid] = track if listed is None else dataclasses.replace(track, gpu=listed.gpu)
    return _with_collector(dataclasses.replace(cards, tracks=tracks, shrunken=known.shrunken), known.collector)


def _with_collector(cards: Cards, failing: Failing | None) -> Cards:
    errors, known = (0, Failing()) if failing is None else (COLLECTOR_FAILING_AFTER, failing)
    return dataclasses.replace(cards, collector_errors=errors, collector_since=known.since, collector_why=known.why)


def merged(own: Cards, other: Cards) -> Cards:
    """What this process knows, with what another one has concluded since. Counts go on where both agree."""
    tracks = dict(own.tracks)
    for uuid, track in other.tracks.items():
        known = tracks.get(uuid)
        if known is None or known.state is not track.state:
            tracks[uuid] = track
    for uuid, track in own.tracks.items():
        if uuid not in other.tracks and track.gpu.parent_uuid is not None:
            del tracks[uuid]  # a slice has a track only while it is not well
    found = dataclasses.replace(own, tracks=tracks, shrunken=other.shrunken)
    if own.collector_failing == other.collector_failing:
        return found
    return _with_collector(
        found, Failing(other.collector_since, other.collector_why) if other.collector_failing else None
    )
