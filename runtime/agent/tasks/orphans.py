"""What this node knows of the time that a control plane's database, put back, has lost.

In the ordinary state ``orphans`` are containers of this node without a claim. While the server has lost something it
is also told of every claim that it does not show as it is, and of every conclusion that it was told above the
revision it came back with: with that an operator has the rows made anew, and nothing is run twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Optional, Union

from runtime.agent.tasks.confidential import without_secrets
from runtime.agent.tasks.journal_file import JournalError
from runtime.agent.tasks.records import ClaimRecord, Letter, Stage
from runtime.agent.tasks.report import OVER_DELETED, tells_the_end
from runtime.protocol.codec import encode
from runtime.protocol.heartbeat import ORPHANS_CAP, Foreign, Intent, LostRevisions
from runtime.protocol.states import OrphanState, Status

if TYPE_CHECKING:
    from runtime.agent.tasks.held import Held
    from runtime.agent.tasks.intents import Intents
    from runtime.agent.tasks.parts import Claims, Parts
    from runtime.agent.tasks.strangers import Strangers
    from runtime.agent.tasks.zombies import ServerWord

LETTERS_FRESH_S = 10.0
"""How long the outbox is not read again for the next heartbeat."""

_AS_SHOWN = {OrphanState.RUNNING: Status.RUNNING.value, OrphanState.SLEEPING: Status.SLEEPING.value}
"""What a server that knows such a claim shows of it."""


@dataclasses.dataclass(frozen=True)
class Told:
    """``entries`` None: nobody knows. ``told_from``: they hold all that is known of what was lost above it.
    ``truncated``: there are more."""

    entries: Optional[list[Foreign]]
    told_from: Optional[int] = None
    truncated: bool = False


class Orphans:
    """For the heartbeat's thread."""

    def __init__(self, parts: Parts, claims: Claims, intents: Intents, word: ServerWord, strangers: Strangers) -> None:
        self._parts = parts
        self._claims = claims
        self._intents = intents
        self._word = word
        self._strangers = strangers
        self._letters: list[Letter] = []
        self._read_for: Optional[LostRevisions] = None
        self._read_at = 0.0

    def told(self) -> Told:
        lost, containers = self._word.lost, self._strangers.orphans()
        if lost is None:
            self._letters, self._read_for = [], None
            return Told(containers)
        if containers is None:
            return Told(None)
        try:
            held = [entry for entry in map(self._of_claim, self._claims.all()) if entry is not None]
            letters = self._archive(lost)
        except JournalError:
            return Told(containers)  # not all that is known
        entries = _merged([*map(of_container, containers), *held], letters)
        if len(entries) > ORPHANS_CAP:
            return Told(entries[:ORPHANS_CAP], truncated=True)
        return Told(entries, lost.start)

    def _of_claim(self, held: Held) -> Optional[Foreign]:
        record = held.record
        if record.control_plane_id != self._parts.client.control_plane_id:
            return None
        letter = None
        if record.stage in (Stage.CONCLUDED, Stage.DONE):
            letter = self._parts.journal.letter(held.key)
        return of_claim(held, letter, self._intents.shown(held.key))

    def _archive(self, lost: LostRevisions) -> list[Foreign]:
        now = self._parts.clock()
        if self._read_for != lost or now - self._read_at >= LETTERS_FRESH_S:
            plane = self._parts.client.control_plane_id
            found = self._parts.journal.told_above(lost.start, ORPHANS_CAP + 1)
            self._letters = [
                dataclasses.replace(letter, log_tail=None) for letter in found if letter.control_plane_id == plane
            ]
            self._read_for, self._read_at = lost, now
        return [of_letter(letter) for letter in self._letters]


def of_claim(held: Held, letter: Optional[Letter], shown: Optional[Intent]) -> Optional[Foreign]:
    """The entry of a claim that the server does not show as it is (``shown`` is what it does); None: it does. Pure."""
    record = held.record
    if record.stage is Stage.CLAIMING:
        return None
    if letter is not None:
        return of_letter(letter, over=held.over if held.superseded else None)
    state = _state_of(held)
    if shown is not None and shown.status == _AS_SHOWN.get(state):
        return None
    return dataclasses.replace(
        _of_attempt(record, state),
        container_id=record.container_id or "",
        gpus=[gpu.uuid for gpu in record.gpus] if state is OrphanState.RUNNING else [],
        since=held.since,
        outcome=held.over if state is OrphanState.SUPERSEDED else None,
    )


def of_letter(letter: Letter, over: Optional[str] = None) -> Foreign:
    """The entry of a conclusion. ``over``: why its attempt was given up, where that is not in the archive yet. Pure."""
    given_up = over is not None or (letter.delivered_at is not None and not tells_the_end(letter))
    state = OrphanState.SUPERSEDED if given_up and over != OVER_DELETED else OrphanState.CONCLUDED
    return dataclasses.replace(
        _of_attempt(letter, state),
        since=letter.node_finished_at,
        from_status=letter.from_status.value,
        status=letter.status.value,
        reason=letter.reason,
        exit_code=letter.exit_code,
        outcome=over or letter.outcome,
    )


def of_container(entry: Foreign) -> Foreign:
    """The entry of a container that no claim explains: whoever adopts it lets the node look at it. Pure."""
    return dataclasses.replace(entry, state=OrphanState.RUNNING.value, assigned=[{"uuid": uuid} for uuid in entry.gpus])


def _state_of(held: Held) -> OrphanState:
    if held.superseded:
        return OrphanState.SUPERSEDED
    stage = held.record.stage
    if stage is Stage.CLAIMED and held.secret_spec is None:
        return OrphanState.CLAIMED
    return OrphanState.SLEEPING if stage is Stage.SLEEPING else OrphanState.RUNNING


def _of_attempt(source: Union[ClaimRecord, Letter], state: OrphanState) -> Foreign:
    """What a claim and a conclusion tell alike."""
    spec = None if source.spec is None else dict(encode(without_secrets(source.spec), drop_none=True))
    return Foreign(
        container_id="",
        task_id=source.task_id,
        control_plane_id=source.control_plane_id,
        uid=source.key.uid,
        attempt=source.key.attempt,
        state=state.value,
        claim_token=source.claim_token,
        driver=source.driver.value,
        assigned=encode(list(source.gpus), drop_none=True),
        spec=spec,
    )


def _merged(first: Iterable[Foreign], second: Iterable[Foreign]) -> list[Foreign]:
    """One entry an attempt; the first one counts."""
    entries: list[Foreign] = []
    known: set[tuple[Optional[str], Optional[int]]] = set()
    for entry in (*first, *second):
        key = (entry.uid, entry.attempt)
        if entry.uid is None or key not in known:
            known.add(key)
            entries.append(entry)
    return entries
