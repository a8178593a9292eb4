"""What somebody did to a container behind the agent's back, and what it says of its end."""

from __future__ import annotations

import dataclasses

from runtime.agent.drivers.containers import create_body
from runtime.agent.drivers.docker_answers import facts_of
from runtime.agent.drivers.driver import ContainerPlan, Facts
from runtime.agent.tasks.classify import OOM_INSIDE, STARTED_AGAIN, Circumstances, classify
from runtime.protocol.reasons import Reason

ENDED = Facts("c", "task-a", "exited", False, 0, "", False, "2026-03-01T12:00:00Z", "2026-03-01T12:01:00Z", {})
DOCUMENT = {"Id": "c", "State": {"Status": "running", "Running": True}, "RestartCount": 2}


def test_an_end_after_the_engine_started_it_again_says_so() -> None:
    again = classify(dataclasses.replace(ENDED, restarted=2, oom_killed=True), Circumstances())
    assert again.reason is Reason.EXITED
    killed, started = again.warnings
    assert (killed.code, started.code) == (OOM_INSIDE, STARTED_AGAIN)
    assert "memory" in killed.detail and "started it again 2 time(s)" in started.detail
    assert classify(ENDED, Circumstances()).warnings == ()


def test_a_restart_policy_is_seen_and_our_own_is_none() -> None:
    for policy, seen in ((None, False), ({"Name": ""}, False), ({"Name": "no"}, False), ({"Name": "always"}, True)):
        facts = facts_of({**DOCUMENT, "HostConfig": {"RestartPolicy": policy}})
        assert (facts.restarts, facts.restarted) == (seen, 2)
    host = create_body(ContainerPlan("task-a", "i:1", {}))["HostConfig"]
    assert not facts_of({**DOCUMENT, "HostConfig": host}).restarts
