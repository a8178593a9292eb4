"""The steps that make a task ours, and that read what it is, secrets included."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Optional

from runtime.agent.engines.route import carried
from runtime.agent.link.errors import Refused, Unavailable
from runtime.agent.tasks.claim import ClaimAnswer, carried_task, claim_update, is_ours, read_refusal
from runtime.agent.tasks.confidential import without_secrets
from runtime.agent.tasks.records import Stage
from runtime.agent.tasks.steps import Step
from runtime.agent.tasks.turn import REFUSED_PAUSE_S
from runtime.protocol.tasks import Task, TaskSpec

if TYPE_CHECKING:
    from runtime.agent.tasks.held import Held
    from runtime.agent.tasks.turn import Turn

log = logging.getLogger(__name__)


class Claiming:
    """Steps send_claim and claim_stored."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._parts = turn.parts

    def claim(self, held: Held) -> bool:
        parts = self._parts
        if parts.client.control_plane_id not in (None, held.record.control_plane_id):
            self._turn.again(held, REFUSED_PAUSE_S)  # another control plane answers now: it knows nothing of this claim
            return False
        parts.step(held, Step.SEND_CLAIM)
        try:
            task: Optional[Task] = parts.client.update_task(
                held.record.task_id, claim_update(parts.identity.node_id, held.record)
            )
        except Unavailable as error:
            self._turn.again(held, error.retry_after)
            return False
        except Refused as refused:
            answer = read_refusal(refused.problem, held.record.control_plane_id)
            if answer is ClaimAnswer.LATER or (refused.code == "task_not_found" and parts.client.behind):
                self._turn.again(held, REFUSED_PAUSE_S)
                return False
            if answer is ClaimAnswer.LOST:
                log.info("task %s is not ours: %s", held.record.task_id, refused)
                self._turn.forget(held)
                return False
            task = carried_task(refused.problem)
        parts.step(held, Step.CLAIM_STORED)
        if task is None or task.spec is None:
            parts.write(held, stage=Stage.CLAIMED)
            return True
        parts.learn(held, task.spec)
        parts.write(held, stage=Stage.CLAIMED, spec=without_secrets(task.spec), gpus=tuple(task.gpus_assigned or ()))
        return True

    def full_spec(self, held: Held) -> Optional[TaskSpec]:
        """The specification with its secrets; asked for again after a restart. None: not yet, or not ours."""
        if held.secret_spec is not None:
            return held.secret_spec
        parts, record = self._parts, held.record
        try:
            task = parts.client.task(record.task_id, record.claim_token)
            if task.uid != record.key.uid and parts.client.control_plane_id != record.control_plane_id:
                self._turn.again(held, REFUSED_PAUSE_S)  # another control plane's task of that name
                return None
        except Unavailable as error:
            self._turn.again(held, error.retry_after)
            return None
        except Refused as refused:
            known = parts.client.control_plane_id == record.control_plane_id and not parts.client.behind
            if refused.code == "task_not_found" and known:
                # Nothing was started yet: nothing is lost by believing it at once.
                self._turn.abandon(held, "the server does not know it")
            else:
                self._turn.again(held, REFUSED_PAUSE_S)
            return None
        if not is_ours(task, record, parts.identity.node_id) or task.spec is None:
            self._turn.abandon(
                held, f"the server says {task.status.value}, attempt {task.attempt}, node {task.node_id}"
            )
            return None
        parts.learn(held, task.spec)
        spec = carried(without_secrets(task.spec), record.spec)
        parts.write(held, spec=spec, gpus=tuple(task.gpus_assigned or ()))
        return task.spec
