"""Instructions whose claim or result the server did not take at first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.agent.instructions import runner as module
from runtime.agent.instructions.runner import InstructionRunner
from runtime.agent.link.errors import LinkError, Refused, Unavailable
from runtime.agent.link.retry import RetryPolicy
from runtime.agent.tasks.journal import open_journal
from runtime.protocol.instructions import Channel, Instruction, InstructionStatus, InstructionUpdate
from runtime.protocol.problems import ProblemDocument

REQUEST = {"node_id": "gpu-a", "op": "check", "image": "app:1", "match": "exact", "timeout_s": 60}
AWAY = Unavailable("nobody answers")
BAD_KEY = Refused(ProblemDocument(401, "bad_api_key", "wrong key"))


class Server:
    """Offers one request while it is pending. ``answers``: what the next updates meet, None for a good answer."""

    control_plane_id = "cp"

    def __init__(self) -> None:
        self.answers: list[LinkError | None] = []
        self.status = InstructionStatus.PENDING
        self.heard: list[str] = []
        self.tokens: set[str] = set()
        self.changed = threading.Condition()

    def instructions(self, channel: Channel, limit: int) -> list[Instruction]:
        waits = self.status is InstructionStatus.PENDING
        return [Instruction("r1", Channel.IMAGE, "gpu-a", self.status, REQUEST)] if waits else []

    def update_instruction(self, channel: Channel, request_id: str, update: InstructionUpdate) -> None:
        with self.changed:
            answer = self.answers.pop(0) if self.answers else None
            self.heard.append(update.status.value)
            self.tokens.add(update.claim_token)
            if answer is None:
                self.status = update.status
            self.changed.notify_all()
        if answer is not None:
            raise answer

    def wait(self, seen: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(seen, 10), (self.status, self.heard)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(module, "TRIES", RetryPolicy(attempts=1))
    monkeypatch.setattr(module, "INTERVAL_S", 0.05)
    monkeypatch.setattr(module, "REFUSED_PAUSE_S", 0.1)
    found = Server()
    images = SimpleNamespace(present=lambda image: True)
    journal = open_journal(tmp_path)
    client: Any = found
    parts: tuple[Any, Any] = (images, SimpleNamespace(node_id="gpu-a"))
    runner = InstructionRunner(client, parts[0], journal, parts[1])
    runner.start()
    found.wake = lambda: runner.wake(["images"])  # type: ignore[attr-defined]
    yield found
    runner.stop()
    journal.close()


def test_a_result_that_was_not_delivered_is_told_again(server: Any) -> None:
    """A running request is offered to nobody any more, so the next pull does not bring it back."""
    server.answers = [None, AWAY, AWAY]
    server.wake()
    server.wait(lambda: server.status is InstructionStatus.SUCCEEDED)
    assert server.heard == ["running", "succeeded", "succeeded", "succeeded"]


@pytest.mark.parametrize("refusal", [AWAY, BAD_KEY], ids=["away", "bad key"])
def test_a_claim_that_nobody_decided_is_made_again_with_the_same_token(server: Any, refusal: LinkError) -> None:
    server.answers = [refusal]
    server.wake()
    server.wait(lambda: server.status is InstructionStatus.SUCCEEDED)
    assert server.heard == ["running", "running", "succeeded"]
    assert len(server.tokens) == 1


def test_a_wrong_key_is_not_asked_about_at_once(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFUSED_PAUSE_S", 0.6)
    server.answers = [BAD_KEY]
    began = time.monotonic()
    server.wake()
    server.wait(lambda: server.status is InstructionStatus.SUCCEEDED)
    assert time.monotonic() - began >= 0.6
