"""What probe answers add up to, and the questions over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from runtime.agent.tasks.classify import StopReason
from runtime.agent.tasks.probes import Answer, ProbeState, after_answer, ask, start_period_s, verdict
from runtime.protocol.states import Kind
from runtime.protocol.tasks import HealthProbe, TaskSpec


def spec(kind: Kind = Kind.JOB, start_timeout_s: float | None = None, **probe: object) -> TaskSpec:
    settings = {"type": "http", "port": 8000, "failures": 3, **probe}
    return TaskSpec(name="t", kind=kind, start_timeout_s=start_timeout_s, health=HealthProbe(**settings))


def play(what: TaskSpec, answers: list[tuple[float, Answer]]) -> tuple[ProbeState, list[StopReason | None]]:
    state, said = ProbeState(since=0.0), []
    for now, answer in answers:
        state = after_answer(state, answer, "x", now, what)
        said.append(verdict(state, now, what))
    return state, said


@pytest.mark.case("FC-074")
def test_no_kill_while_the_model_loads() -> None:
    """A limit shorter than the load time killed the container again and again."""
    what = spec(Kind.INFERENCE, on_failure="fail")
    loading = [(t, Answer.REFUSED) for t in range(0, 180, 5)] + [(t, Answer.NOT_READY) for t in range(180, 480, 5)]
    state, said = play(what, [*loading, (480.0, Answer.READY)])
    assert said == [None] * len(said)
    assert state.ready and state.healthy
    after, said = play(what, [*loading, (480.0, Answer.READY), *((481.0 + n, Answer.REFUSED) for n in range(3))])
    assert said[-3:] == [None, None, StopReason.HEALTH]
    assert after.healthy is False


def test_never_ready_and_alive_ends_at_the_start_limit() -> None:
    what = spec(Kind.INFERENCE, start_timeout_s=100)
    _, said = play(what, [(t, Answer.NOT_READY) for t in range(0, 120, 10)])
    assert said.index(StopReason.START_TIMEOUT) == 10


def test_refusals_count_after_the_start_period_and_only_in_a_row() -> None:
    what = spec(start_period_s=10, on_failure="fail")
    state, said = play(what, [(9.0, Answer.REFUSED)] * 5)
    assert (state.failures, said[-1]) == (0, None)
    _, said = play(what, [(11.0, Answer.REFUSED)] * 3)
    assert said == [None, None, StopReason.HEALTH]
    state, _ = play(what, [(11.0, Answer.REFUSED)] * 2 + [(12.0, Answer.READY)])
    assert state.failures == 0


def test_a_slow_engine_is_not_a_failed_one() -> None:
    what = spec(on_failure="fail", start_period_s=0)
    state, said = play(what, [(1.0, Answer.READY)] + [(2.0, Answer.NOT_READY)] * 50)
    assert said == [None] * 51
    assert (state.healthy, state.ready) == (True, False), "not failed, and not ready either"
    assert after_answer(state, Answer.READY, "", 3.0, what).ready
    assert after_answer(state, Answer.REFUSED, "", 3.0, what).ready is False


def test_a_start_limit_is_over_with_the_first_success() -> None:
    what = spec(start_timeout_s=100)
    _, said = play(what, [(1.0, Answer.READY), (200.0, Answer.NOT_READY), (201.0, Answer.REFUSED)])
    assert said == [None, None, None]


def test_report_only_tells() -> None:
    state, said = play(spec(start_period_s=0), [(1.0, Answer.REFUSED)] * 5)
    assert state.healthy is False
    assert said == [None] * 5


def test_start_periods() -> None:
    assert start_period_s(spec()) == 60
    assert start_period_s(spec(Kind.INFERENCE)) == 1800
    assert start_period_s(spec(Kind.INFERENCE, start_period_s=1)) == 1


@pytest.fixture
def server() -> Iterator[tuple[int, dict[str, int]]]:
    status = {"status": 200}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status["status"] if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield http.server_address[1], status
    http.shutdown()
    http.server_close()


@pytest.mark.case("FC-051")
def test_probes_use_no_proxy(server: tuple[int, dict[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """With HTTP_PROXY set, probes to loopback went to the proxy and failed."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.0/8")
    port, status = server
    assert ask(HealthProbe("http", port), "127.0.0.1")[0] is Answer.READY
    status["status"] = 503
    assert ask(HealthProbe("http", port), "127.0.0.1") == (Answer.NOT_READY, "answered 503")
    assert ask(HealthProbe("http", port, "/other"), "127.0.0.1")[0] is Answer.NOT_READY
    assert ask(HealthProbe("tcp", port), "127.0.0.1")[0] is Answer.READY


def test_refused_and_slow() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        assert ask(HealthProbe("http", port), "127.0.0.1")[0] is Answer.REFUSED
        closed.listen()
        assert ask(HealthProbe("http", port, timeout_s=0.2), "127.0.0.1")[0] is Answer.NOT_READY
