"""Is the program well? The question over HTTP or TCP, and what the answers add up to.

A slow answer or a 5xx is "not ready", never a failure: an engine that loads a model behaves so. Only a refused
connection counts, and only after the start period or the first success. Proxies are never used.
"""

from __future__ import annotations

import dataclasses
import http.client
import socket
from dataclasses import dataclass
from enum import Enum
from typing import Optional

from runtime.agent.tasks.classify import StopReason
from runtime.protocol.states import Kind
from runtime.protocol.tasks import HealthProbe, TaskSpec

START_PERIOD_S = 60.0
START_PERIOD_INFERENCE_S = 1800.0


class Answer(str, Enum):
    READY = "ready"
    NOT_READY = "not_ready"
    REFUSED = "refused"


@dataclass(frozen=True)
class ProbeState:
    """What the answers so far add up to. ``since`` is when the program started (monotonic seconds).

    ``begun``: there was a success, ever. ``ready`` is what the newest answer says, None when nobody has asked
    since the agent's own start. ``healthy`` is None as long as nothing can be said: not ready yet.
    """

    since: float
    begun: bool = False
    ready: Optional[bool] = False
    failures: int = 0
    healthy: Optional[bool] = None
    detail: Optional[str] = None


def start_period_s(spec: TaskSpec) -> float:
    """How long refused connections count for nothing, unless a success comes first."""
    if spec.health is not None and spec.health.start_period_s is not None:
        return spec.health.start_period_s
    return START_PERIOD_INFERENCE_S if spec.kind is Kind.INFERENCE else START_PERIOD_S


def after_answer(state: ProbeState, answer: Answer, detail: str, now: float, spec: TaskSpec) -> ProbeState:
    """The state after one more answer. Pure."""
    probe = spec.health
    if probe is None:
        return state
    if answer is Answer.READY:
        return dataclasses.replace(state, begun=True, ready=True, failures=0, healthy=True, detail=None)
    state = dataclasses.replace(state, ready=False, detail=detail)
    if answer is Answer.NOT_READY or (not state.begun and now - state.since < start_period_s(spec)):
        return state
    failures = state.failures + 1
    healthy = False if failures >= probe.failures else state.healthy
    return dataclasses.replace(state, failures=failures, healthy=healthy)


def verdict(state: ProbeState, now: float, spec: TaskSpec) -> Optional[StopReason]:
    """Whether the program has to be ended for what its probe says. Pure."""
    probe = spec.health
    if probe is None:
        return None
    if not state.begun and spec.start_timeout_s is not None and now - state.since >= spec.start_timeout_s:
        return StopReason.START_TIMEOUT
    if state.healthy is False and probe.on_failure == "fail":
        return StopReason.HEALTH
    return None


def ask(probe: HealthProbe, address: str) -> tuple[Answer, str]:
    """Ask once, directly, within the probe's time limit."""
    try:
        if probe.type == "tcp":
            socket.create_connection((address, probe.port), probe.timeout_s).close()
            return Answer.READY, ""
        connection = http.client.HTTPConnection(address, probe.port, timeout=probe.timeout_s)
        try:
            connection.request("GET", probe.path, headers={"Connection": "close", "User-Agent": "heterofleet-agent"})
            status = connection.getresponse().status
        finally:
            connection.close()
    except ConnectionRefusedError:
        return Answer.REFUSED, f"port {probe.port} refuses connections"
    except TimeoutError:
        return Answer.NOT_READY, f"no answer within {probe.timeout_s:g} s"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer.NOT_READY, f"no answer: {error}"
    if 200 <= status < 400:
        return Answer.READY, ""
    return Answer.NOT_READY, f"answered {status}"
