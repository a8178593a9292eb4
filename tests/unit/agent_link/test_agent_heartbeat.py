"""What is sent in full and what is only named, and what follows from each answer."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.agent.link.beat import Composer, Content
from runtime.agent.link.errors import Refused, Unavailable
from runtime.agent.link.heartbeat import Heartbeats
from runtime.agent.link.outcome import Action, Link, Outcome, after_failure, clamped_interval
from runtime.protocol.hardware import Gpu, Host
from runtime.protocol.heartbeat import HeartbeatAnswer, PendingCounts
from runtime.protocol.problems import ProblemDocument
from tests.unit.agent_link.agent_stubs import StubIdentity, heartbeats

WHO = {"node_id": "gpu-a", "instance_id": "instance-1", "run": 3}


def answer(**members) -> HeartbeatAnswer:
    values = {"registered": True, "control_plane_id": "cp", "revision": 7, "time": "2026-01-01T00:00:00Z"}
    return HeartbeatAnswer(**{**values, "pending": PendingCounts(), **members})


def refused(code: str, status: int = 409, **members) -> Refused:
    return Refused(ProblemDocument(status, code, "why", members=members))


HOST = Host(hostname="a", cpu_cores=8, cpu_percent=1.5, uptime_s=9)
CARDS = [Gpu("GPU-1", "nvidia")]


def test_first_beat_is_full_the_next_names_what_is_held() -> None:
    composer = Composer()
    content = Content({"host": HOST, "gpus": CARDS, "images": []})
    first = composer.compose(WHO, content)
    assert first.gpus == CARDS and first.host == HOST and first.images == []
    composer.accepted(first, answer())
    second = composer.compose(WHO, content)
    assert second.gpus is None and second.images is None
    assert second.host == Host(cpu_percent=1.5, uptime_s=9)
    assert second.digests == first.digests and set(second.digests) == {"host", "gpus", "images"}
    assert (first.seq, second.seq) == (1, 2)


def test_load_alone_does_not_make_the_host_another() -> None:
    composer = Composer()
    first = composer.compose(WHO, Content({"host": HOST}))
    composer.accepted(first, answer())
    second = composer.compose(WHO, Content({"host": Host(hostname="a", cpu_cores=8, cpu_percent=99.0)}))
    assert second.host == Host(cpu_percent=99.0)
    third = composer.compose(WHO, Content({"host": Host(hostname="b", cpu_cores=8, cpu_percent=99.0)}))
    assert third.host is not None and third.host.hostname == "b"


def test_a_section_that_is_unknown_now_is_in_neither() -> None:
    composer = Composer()
    composer.accepted(composer.compose(WHO, Content({"gpus": CARDS})), answer())
    beat = composer.compose(WHO, Content({"gpus": None}))
    assert beat.gpus is None and beat.digests == {}


@pytest.mark.parametrize("why", ["not acknowledged", "send_full", "another control plane", "failed"])
def test_what_the_server_may_not_hold_is_sent_again(why: str) -> None:
    composer = Composer()
    content = Content({"gpus": CARDS})
    first = composer.compose(WHO, content)
    if why == "send_full":
        composer.accepted(first, answer(send_full=["gpus"]))
    elif why == "another control plane":
        composer.accepted(first, answer())
        assert composer.accepted(composer.compose(WHO, content), answer(control_plane_id="other"))
    elif why == "failed":
        composer.accepted(first, answer())
        composer.compose(WHO, content)
        composer.failed()
    assert composer.compose(WHO, content).gpus == CARDS


@pytest.mark.parametrize(
    ("error", "may_rename", "outcome"),
    [
        (Unavailable("no answer"), False, Outcome(Link.AWAY)),
        (Unavailable("busy", answered=True, retry_after=7, status=503), False, Outcome(Link.AWAY)),
        (Unavailable("502", answered=True, status=502), False, Outcome(Link.POLL)),
        (refused("bad_api_key", 401), True, Outcome(Link.REFUSED, delay_s=60)),
        (refused("stale_run", known_run=9), False, Outcome(Link.POLL, Action.TAKE_RUN, 0, 9)),
        (refused("instance_cloned"), False, Outcome(Link.REFUSED, Action.NEW_INSTANCE, 0)),
        (refused("node_id_in_use"), True, Outcome(Link.REFUSED, Action.SPARE_NODE_ID, 0)),
        (refused("node_id_in_use"), False, Outcome(Link.REFUSED, delay_s=60)),
        (refused("instance_mismatch", 403), True, Outcome(Link.REFUSED, delay_s=60)),
        (refused("invalid_heartbeat", 422), False, Outcome(Link.POLL, delay_s=5)),
        (refused("body_too_large", 413), False, Outcome(Link.POLL, delay_s=5)),
    ],
)
def test_what_a_failed_beat_means(error, may_rename: bool, outcome: Outcome) -> None:
    assert after_failure(error, interval_s=5, may_rename=may_rename) == outcome


def test_what_depends_on_the_name_is_looked_at_only_when_the_name_is_refused() -> None:
    """The look asks the engine: a server that is away must not make every beat wait for a frozen one."""
    looks: list[str] = []
    identity: Any = SimpleNamespace(defaulted=True, node_id="gpu-a")
    nothing: Any = SimpleNamespace()
    beats = Heartbeats(
        nothing,
        identity,
        lambda: Content({}),
        on_answer=nothing,
        on_pending=nothing,
        on_status=lambda: None,
        holds_anything=lambda: bool(looks.append("looked")) or True,
        seen=None,
    )
    for error in (Unavailable("no answer"), refused("invalid_heartbeat", 422), refused("bad_api_key", 401)):
        beats._failed(error)
    assert looks == []
    beats._failed(refused("node_id_in_use"))
    assert looks == ["looked"]


@pytest.mark.parametrize(("asked", "taken"), [(0, 1), (0.2, 1), (5, 5), (60, 60), (3600, 60)])
def test_the_server_chooses_the_interval_within_limits(asked: float, taken: float) -> None:
    assert clamped_interval(asked) == taken


class Script:
    """Answers or raises, one after the other."""

    def __init__(self, *steps) -> None:
        self.steps = list(steps)
        self.beats = []

    def heartbeat(self, beat):
        self.beats.append(beat)
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step


def run(script: Script, beats: int, **options):
    heart = heartbeats(script, **options)
    for _ in range(beats):
        heart.loop.run_once()
    return heart


def test_stale_run_goes_on_from_the_known_one() -> None:
    identity, script = StubIdentity(), Script(refused("stale_run", known_run=40), answer())
    heart = run(script, 2, identity=identity)
    assert [beat.run for beat in script.beats] == [3, 41]
    assert heart.status.registered


def test_two_agents_that_take_the_same_run_in_turn_do_not_race() -> None:
    script = Script(refused("stale_run", known_run=40), refused("stale_run", known_run=42))
    heart = run(script, 2)
    assert heart.loop.due - heart.loop._clock() > 0.9


def test_a_clone_becomes_a_new_instance() -> None:
    script = Script(refused("instance_cloned"), answer())
    run(script, 2)
    assert [(beat.instance_id, beat.run) for beat in script.beats] == [("instance-1", 3), ("instance-2", 1)]


@pytest.mark.parametrize(
    ("defaulted", "holds", "second"),
    [
        (True, False, "gpu-a-123456"),
        (True, True, "gpu-a"),
        (False, False, "gpu-a"),
    ],
)
def test_a_taken_node_id_is_given_up_only_when_defaulted_and_nothing_is_held(defaulted, holds, second) -> None:
    script = Script(refused("node_id_in_use"), answer())
    heart = heartbeats(script, StubIdentity(defaulted=defaulted), holds)
    heart.loop.run_once()
    wait = heart.loop.due - heart.loop._clock()
    assert wait < 1 if second != "gpu-a" else 50 < wait < 70
    heart.loop.run_once()
    assert [beat.node_id for beat in script.beats] == ["gpu-a", second]


def test_retry_after_is_obeyed() -> None:
    heart = run(Script(Unavailable("busy", answered=True, retry_after=33)), 1)
    assert 33 <= heart.loop.due - heart.loop._clock() + 0.1 < 36.5
    assert heart.status.link is Link.AWAY


def test_the_same_error_is_logged_once_and_keeps_its_since(caplog) -> None:
    script = Script(refused("bad_api_key", 401), refused("bad_api_key", 401), Unavailable("away"), answer())
    with caplog.at_level(logging.INFO):
        heart = run(script, 2)
        since = heart.status.last_error.since
        assert heart.status.last_error.code == "bad_api_key" and not heart.status.registered
        heart.loop.run_once()
        assert heart.status.last_error.code == "unreachable" and heart.status.last_error.since >= since
        heart.loop.run_once()
    assert heart.status.registered and heart.status.last_error is None
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING", "INFO"]


def test_what_an_answer_leads_to() -> None:
    seen, pending, status = [], [], []
    script = Script(answer(interval_s=2, pending=PendingCounts(tasks=3)), answer(pending=None, revision=5))
    heart = run(script, 1, on_answer=seen.append, on_pending=pending.append, on_status=lambda: status.append(1))
    assert heart.loop.interval_s == 2 and pending == [PendingCounts(tasks=3)] and not heart.status.polls
    heart.loop.run_once()
    assert heart.status.polls and len(seen) == 2 and len(status) == 2
    assert heart.seen == ("cp", 7)


def test_the_highest_revision_goes_with_the_control_plane_it_was_seen_of() -> None:
    script = Script(answer(revision=2, control_plane_id="new"), answer(revision=3, control_plane_id="new"))
    run(script, 2, seen=("old", 90))
    assert [(b.seen_control_plane_id, b.seen_revision) for b in script.beats] == [("old", 90), ("new", 2)]


def test_leaving_is_said_by_the_last_beat() -> None:
    script = Script(answer(), answer())
    heart = run(script, 1)
    heart.leave(script)
    assert [beat.leaving for beat in script.beats] == [False, True]


def test_two_control_planes_that_answer_in_turn_make_no_race() -> None:
    script = Script(*(answer(control_plane_id=name) for name in ("a", "b", "a", "b", "a")))
    heart = heartbeats(script)
    hurries = []
    for _ in range(5):
        heart.loop.run_once()
        hurries.append(heart.loop._woken)
        heart.loop._woken = False
    assert hurries == [False, True, False, False, False]
