"""The steps between claim and start: checks, image, container, start call."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Optional

from runtime.agent.drivers.errors import EngineRefused, EngineUnavailable, NotThere
from runtime.agent.tasks.checks import Checked, CheckFailed, check
from runtime.agent.tasks.classify import Conclusion, StopReason, start_failure
from runtime.agent.tasks.images import engine_line
from runtime.agent.tasks.plan import card_options, container_plan, spare_name
from runtime.agent.tasks.pulling import Puller, end_without_image
from runtime.agent.tasks.records import Stage
from runtime.agent.tasks.steps import Step
from runtime.agent.tasks.volumes import identity_of
from runtime.protocol.reasons import Reason
from runtime.protocol.states import Phase, Status
from runtime.protocol.tasks import TaskSpec

if TYPE_CHECKING:
    from runtime.agent.tasks.claiming import Claiming
    from runtime.agent.tasks.held import Held
    from runtime.agent.tasks.turn import Turn

log = logging.getLogger(__name__)

CARDS_PATIENCE_S = 60.0
LOOK_AGAIN_S = 1.0
CREATE_TRIES = 3


class Preparing:
    """Steps check, pull_start, pull_done, create, created, journal_start and start."""

    def __init__(self, turn: Turn, claiming: Claiming) -> None:
        self._turn = turn
        self._parts = turn.parts
        self._claiming = claiming
        self._puller = Puller(turn.parts)

    def prepare(self, held: Held) -> bool:
        if self._stop_wanted(held):
            return self.end_unstarted(held)
        parts = self._parts
        spec = self._claiming.full_spec(held)
        if spec is None:
            return False
        parts.step(held, Step.CHECK)
        held.enter(Phase.CHECKING)
        if held.record.gpus and parts.snapshot().gpus is None and parts.clock() - held.taken_at < CARDS_PATIENCE_S:
            self._turn.again(held, LOOK_AGAIN_S)
            return False
        try:
            checked = check(spec, held.record.gpus, parts.snapshot(), parts.settings)
        except CheckFailed as failed:
            return self._turn.end(held, end_without_image(failed.reason, failed.text), None)
        if checked.dropped_env:
            log.warning("task %s: variables without a value were dropped: %s", held.record.task_id,
                        ", ".join(checked.dropped_env))  # fmt: skip
        made = self._own_container(held) if held.maybe_made else None
        if made is not None:
            parts.write(held, stage=Stage.CREATED, container_id=made, mounts=_mounts(checked))
            return True
        if not self._image_is_here(held, checked, spec):
            return held.record.stage is Stage.CONCLUDED
        if self._stop_wanted(held):
            return True
        return self._create(held, spec, checked)

    @staticmethod
    def _stop_wanted(held: Held) -> bool:
        """Asked anew before each step: others set it while a step is under way."""
        return held.want is not None

    def _own_container(self, held: Held) -> Optional[str]:
        """The container that was made for this very claim before its id could be written down."""
        for seen in self._parts.driver.list_own():
            if (seen.uid, seen.attempt, seen.claim_token) == (
                held.key.uid,
                held.key.attempt,
                held.record.claim_token,
            ) and seen.state != "removing":
                return seen.id
        return None

    def _image_is_here(self, held: Held, checked: Checked, spec: TaskSpec) -> bool:
        parts = self._parts
        if held.pulling:
            return False
        if held.pull_verdict is not None:
            verdict, held.pull_verdict = held.pull_verdict, None
            self._turn.end(held, verdict, None)
            return False
        if held.image_ready or (not parts.settings.verify_image_access and parts.driver.images.present(checked.image)):
            return True
        parts.step(held, Step.PULL_START)
        held.enter(Phase.PULLING)
        held.pulling = True

        def pull() -> None:
            try:
                held.pull_verdict = self._puller.pull(held, checked.image, spec.registry_auth)
                held.image_ready = held.pull_verdict is None and not held.cancelled.is_set()
            finally:
                held.pulling = False
                parts.step(held, Step.PULL_DONE)
                self._turn.advance(held)

        parts.pulls.submit(held.name, pull)
        return False

    def _create(self, held: Held, spec: TaskSpec, checked: Checked) -> bool:
        parts, record = self._parts, held.record
        parts.step(held, Step.CREATE)
        held.enter(Phase.CREATING)
        plan = container_plan(
            record,
            spec,
            checked,
            card_options(checked.gpus, parts.engine.runtimes),
            parts.identity.node_id,
            parts.identity.instance_id,
            parts.settings.log_max_mib,
        )
        try:
            container_id = parts.driver.create(plan, spare_name(record))
        except EngineUnavailable:
            held.maybe_made = True  # it may be there: looked for by its labels before another one is made
            raise
        except NotThere as gone:
            held.image_ready = False  # somebody removed the image since
            held.tries += 1
            if held.tries < CREATE_TRIES:
                return True
            return self._turn.end(held, start_failure(gone.text), None)
        except EngineRefused as refusal:
            verdict = start_failure(refusal.text)
            return self._turn.end(held, end_without_image(verdict.reason, verdict.error or ""), None)
        parts.write(held, stage=Stage.CREATED, container_id=container_id, mounts=_mounts(checked))
        parts.step(held, Step.CREATED)
        return True

    def start(self, held: Held) -> bool:
        parts = self._parts
        container_id = held.record.container_id
        assert container_id is not None
        if held.want is not None:
            return self.end_unstarted(held)
        if self._claiming.full_spec(held) is None:  # after a restart: the server may have given the task away since
            return False
        if self.swapped(held):
            text = "a mount source was swapped after the check"
            return self._turn.end(held, Conclusion(Status.FAILED, Reason.VOLUME_REJECTED, error=text), None)
        held.enter(Phase.STARTING)
        parts.step(held, Step.JOURNAL_START)
        parts.write(held, stage=Stage.STARTING, asked_mark=parts.boot, asked_mono=parts.clock())
        parts.step(held, Step.START)
        try:
            parts.driver.start(container_id)
        except NotThere:
            parts.write(held, stage=Stage.CLAIMED, container_id=None)  # gone before it ever started: made anew
            return True
        except EngineRefused as refusal:
            parts.write(held, start_error=engine_line(refusal.text))
        return True

    def end_unstarted(self, held: Held) -> bool:
        """Asked to stop before anything was started."""
        if held.pulling:
            return False  # the pull was given up; its end comes back here
        if held.want is StopReason.STALE:
            verdict = Conclusion(Status.STOPPED, Reason.STOPPED_BY_OPERATOR, error="another attempt took over")
        else:
            verdict = Conclusion(Status.STOPPED, Reason.STOPPED_BY_OPERATOR, error="stopped before it was started")
        return self._turn.end(held, verdict, None)

    def swapped(self, held: Held) -> bool:
        return any(identity_of(path) != (device, inode) for path, device, inode in held.record.mounts)


def _mounts(checked: Checked) -> tuple[tuple[str, int, int], ...]:
    """What lies at the mount sources, to be compared before the start and after it."""
    return tuple((source.path, source.device, source.inode) for source in checked.sources)
