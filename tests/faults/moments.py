"""The moments of a task's way that can be seen from outside, and an agent that dies at one of them.

A moment is a call to server or engine (before it is passed on; after it was done and before its answer is given; for
a pull also in its middle), or a journal commit. What the journal said of the task before makes two calls of the same
name different moments. The agent stands still at each, so a kill there is exact.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass

from runtime.agent.tasks.records import ClaimRecord
from tests.faults.engine_proxy import container_of
from tests.faults.fleet import Place
from tests.faults.named_faults import DROP_ANSWER, DROP_REQUEST
from tests.faults.relay import Call, Fault
from tests.faults.server_proxy import body_of

NONE = "-"
PULL = "POST /images/create"
OF_IMAGES = (PULL, "GET /images/{name}/json")


@dataclass(frozen=True)
class Moment:
    """``state``: what the journal last said of the task. ``side``: before, after, amid (a stream), or commit; of a
    commit ``what`` is the new state. ``lives``: how often the agent had been killed on this way before."""

    state: str
    side: str
    what: str
    lives: int = 0

    def __str__(self) -> str:
        return f"{self.side} {self.what} [{self.state}]" + (f" in life {self.lives + 1}" if self.lives else "")


def state_of(record: ClaimRecord | None) -> str:
    """What decides about the next step, in one word or a few."""
    if record is None:
        return NONE
    words = [record.stage.value]
    if record.pull_attempts:
        words.append("pulled")
    if record.container_id is not None and record.stage.value == "claimed":
        words.append("with container")
    if record.slept_run is not None:
        words.append("slept")
    if record.ready:
        words.append("ready")
    if record.start_error is not None:
        words.append("refused")
    if record.stop is not None:
        words.append(f"stop {record.stop.reason.value} {record.stop.sent.value}")
    return " ".join(words)


class Witness:
    """Sees all moments of one task at a time on one node; with a target, kills the agent at the first that is it.

    ``moments`` is what was seen, in order. One lock makes the order one; the agent's threads wait their turn.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.moments: list[Moment] = []
        self._lock = threading.RLock()
        self._task = self._uid = ""
        self._box: str | None = None
        self._state = NONE
        self._targets: list[Moment] = []
        self._lives = 0
        place.server.rule, place.server.after = self._server_before, self._server_after
        place.engine.rule, place.engine.after = self._engine_before, self._engine_after
        place.engine.amid = self._engine_amid
        assert place.commits is not None, "the fleet must watch commits"
        self._claims = place.commits.claims
        place.commits.on_commit = self._commit

    def follow(self, task_id: str, targets: list[Moment] | None = None) -> None:
        """From now on it is about this task; ``targets`` are killed at one after the other."""
        with self._lock:
            self._task, self._uid, self._box = task_id, "", None
            self._state, self._lives, self.moments = NONE, 0, []
            self._targets = list(targets or [])

    @property
    def left(self) -> list[Moment]:
        """Targets that have not come."""
        return list(self._targets)

    def kill(self) -> None:
        """End the agent now, whatever it does; it counts as one of the task's."""
        with self._lock:
            self.place.agent.kill()
            self._lives += 1

    def _at(self, side: str, what: str) -> bool:
        """Note a moment; whether the agent was killed there."""
        moment = Moment(self._state, side, what, self._lives)
        self.moments.append(moment)
        if self._targets and moment == self._targets[0]:
            self._targets.pop(0)
            self.kill()
            return True
        return False

    # Calls to the server

    def _of_task(self, call: Call) -> bool:
        return bool(self._task) and f"/tasks/{self._task}" in call.path

    def _server_before(self, call: Call) -> Fault | None:
        with self._lock:
            if self._of_task(call) and self._at("before", _named(call)):
                return DROP_REQUEST
        return None

    def _server_after(self, call: Call) -> Fault | None:
        with self._lock:
            if call.kind == "offer" and self._task and f'"{self._task}"'.encode() in call.content:
                self._uid = next(task["uid"] for task in json.loads(call.content)["tasks"] if task["id"] == self._task)
                return DROP_ANSWER if self._at("after", "offer") else None
            if self._of_task(call) and self._at("after", _named(call)):
                return DROP_ANSWER
        return None

    # Calls to the engine

    def _of_box(self, call: Call) -> bool:
        if not self._uid:
            return False
        if call.kind == "POST /containers/create":
            return self._uid.encode() in call.body
        if call.kind in OF_IMAGES:
            return self._state.startswith("claimed")
        return self._box is not None and container_of(call) == self._box

    def _engine_before(self, call: Call) -> Fault | None:
        with self._lock:
            if not self._of_box(call):
                return None
            if self._at("before", call.kind):
                return DROP_REQUEST
        return None

    def _engine_amid(self, call: Call) -> Fault | None:
        with self._lock:
            return DROP_ANSWER if self._of_box(call) and self._at("amid", call.kind) else None

    def _engine_after(self, call: Call) -> Fault | None:
        with self._lock:
            if not self._of_box(call):
                return None
            if call.kind == "POST /containers/create" and call.status == 201:
                self._box = json.loads(call.content)["Id"]
            return DROP_ANSWER if self._at("after", _told(call)) else None

    # Commits

    def _commit(self) -> None:
        with self._lock:
            if not self._uid:
                return
            own = [claim for claim in self._claims() if claim.key.uid == self._uid]
            record = own[0] if own else None
            if record is not None and record.container_id is not None:
                self._box = record.container_id
            state = state_of(record)
            if state != self._state:
                self._at("commit", state)
                self._state = state


def _named(call: Call) -> str:
    """A report says which end it carries."""
    return f"report {body_of(call).get('status')}" if call.kind == "report" else call.kind


def _told(call: Call) -> str:
    """An inspection says which state it found."""
    if call.kind == "GET /containers/{id}/json" and call.status == 200:
        return f"{call.kind}: {json.loads(call.content)['State']['Status']}"
    return call.kind
