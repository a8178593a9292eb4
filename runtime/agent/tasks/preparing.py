"""The steps between claim and start: checks, image, container, start call."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Optional

from runtime.agent.drivers.errors import EngineRefused, NotThere
from runtime.agent.tasks import room
from runtime.agent.tasks.checks import Checked, CheckFailed, check, fence_of
from runtime.agent.tasks.classify import Conclusion, StopReason, start_failure
from runtime.agent.tasks.confidential import without_secrets
from runtime.agent.tasks.giving import by_place, moved
from runtime.agent.tasks.images import engine_line
from runtime.agent.tasks.mounting import ELSEWHERE, Mounting
from runtime.agent.tasks.plan import container_plan, spare_name
from runtime.agent.tasks.pulling import Puller, end_without_image, no_room
from runtime.agent.tasks.records import Stage
from runtime.agent.tasks.resuming import Resuming
from runtime.agent.tasks.steps import Step
from runtime.protocol.reasons import Reason
from runtime.protocol.states import Phase, Status
from runtime.protocol.tasks import TaskSpec

if TYPE_CHECKING:
    from runtime.agent.drivers.driver import Seen
    from runtime.agent.tasks.claiming import Claiming
    from runtime.agent.tasks.held import Held
    from runtime.agent.tasks.turn import Turn

log = logging.getLogger(__name__)

CARDS_PATIENCE_S = 60.0
LOOK_AGAIN_S = 1.0
CREATE_TRIES = 3


class Preparing:
    """Steps check, pull_start, pull_done, create, created, journal_start and start."""

    def __init__(self, turn: Turn, claiming: Claiming, mounting: Mounting) -> None:
        self._turn = turn
        self._parts = turn.parts
        self._claiming = claiming
        self._mounting = mounting
        self._puller = Puller(turn.parts)
        self._resuming = Resuming(turn.parts, mounting)

    def prepare(self, held: Held) -> bool:
        if self._stop_wanted(held):
            return self.end_unstarted(held)
        if held.pulling:
            return False  # a look from elsewhere must not show it as being checked
        parts = self._parts
        spec = self._claiming.full_spec(held)
        if spec is None:
            return False
        parts.step(held, Step.CHECK)
        held.enter(Phase.CHECKING)
        if held.record.gpus and parts.snapshot().gpus is None and parts.clock() - held.taken_at < CARDS_PATIENCE_S:
            self._turn.again(held, LOOK_AGAIN_S)
            return False
        engine = parts.engine_of(held)
        try:
            spec = self._routed(held, spec, engine.facts.root_dir)
            checked = check(
                spec,
                held.record.gpus,
                parts.snapshot(),
                parts.settings,
                engine.facts.root_dir,
                engine.facts.runtimes,
            )
        except CheckFailed as failed:
            return self._turn.end(held, end_without_image(failed.reason, failed.text), None)
        if checked.dropped_env:
            log.warning("task %s: variables without a value were dropped: %s", held.record.task_id,
                        ", ".join(checked.dropped_env))  # fmt: skip
        made = self._own_container(held) if held.maybe_made else None
        if made is not None:
            stage = Stage.CREATED if made.state == "created" else Stage.STARTING  # its start may have been sent
            parts.write(held, stage=stage, container_id=made.id, mounts=())
            return True
        if not self._image_is_here(held, checked, spec):
            return held.record.stage is Stage.CONCLUDED
        if self._stop_wanted(held):
            return True
        full = room.to_work(engine.facts.root_dir, parts.settings.disk_min_free_mib)
        if full is not None:
            return self._turn.end(held, no_room(f"{full} to make a container", parts.driver_of(held).images), None)
        return self._create(held, spec, checked)

    def _routed(self, held: Held, spec: TaskSpec, engine_root: Optional[str]) -> TaskSpec:
        """The task with the image and program that this node gives it, where it names a model and no image. Written
        down, since volumes and probe are looked up there later."""
        parts = self._parts
        if parts.route is None:
            return spec
        routed = parts.route(spec, held.record.gpus, fence_of(parts.settings, engine_root))
        if routed is not spec and held.record.spec != without_secrets(routed):
            parts.write(held, spec=without_secrets(routed))
            log.info("task %s: its model is served with %s", held.record.task_id, routed.image)
        return routed

    @staticmethod
    def _stop_wanted(held: Held) -> bool:
        """Asked anew before each step: others set it while a step is under way."""
        return held.want is not None

    def _own_container(self, held: Held) -> Optional[Seen]:
        """The container that was made for this very claim before its id could be written down."""
        for seen in self._parts.driver_of(held).list_own():
            if (seen.uid, seen.attempt, seen.claim_token) == (
                held.key.uid,
                held.key.attempt,
                held.record.claim_token,
            ) and seen.state != "removing":
                return seen
        return None

    def _image_is_here(self, held: Held, checked: Checked, spec: TaskSpec) -> bool:
        parts = self._parts
        if held.pulling:
            return False
        if held.pull_verdict is not None:
            verdict, held.pull_verdict = held.pull_verdict, None
            self._turn.end(held, verdict, None)
            return False
        images = parts.driver_of(held).images
        if images is None or held.image_ready:
            return True
        if not parts.settings.verify_image_access and images.present(checked.image):
            return True
        parts.step(held, Step.PULL_START)
        held.enter(Phase.PULLING)
        held.pulling = True

        def pull() -> None:
            try:
                held.pull_verdict = self._puller.pull(held, images, checked.image, spec.registry_auth)
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
        try:
            checked = dataclasses.replace(checked, mounts=self._mounting.hold(held))
            look = self._resuming.look(held, spec)
        except CheckFailed as failed:
            return self._turn.end(held, end_without_image(failed.reason, failed.text), None)
        if look is not None and look.found is not None:
            spec = dataclasses.replace(spec, resume_from_checkpoint=look.found.path)
        plan = container_plan(
            record,
            spec,
            checked,
            parts.identity.node_id,
            parts.identity.instance_id,
            parts.settings.log_max_mib,
        )
        # Until its id is written down it may be there: it is looked for by its labels before another one is made.
        held.maybe_made = True
        try:
            container_id = parts.driver_of(held).create(plan, spare_name(record))
        except NotThere as gone:
            held.image_ready = False  # somebody removed the image since
            held.tries += 1
            if held.tries < CREATE_TRIES:
                return True
            return self._turn.end(held, start_failure(parts.masked(held, gone.text)), None)
        except EngineRefused as refusal:
            missing = "bind source path does not exist" in refusal.text
            if missing and any(place in refusal.text for place in checked.cards.mounts):
                return self._turn.end(held, end_without_image(Reason.GPU_UNAVAILABLE, refusal.text), None)
            if missing and checked.mounts:
                return self._turn.end(held, end_without_image(Reason.ENGINE_UNAVAILABLE, ELSEWHERE), None)
            verdict = start_failure(parts.masked(held, refusal.text))
            if verdict.reason is Reason.DISK_FULL:
                return self._turn.end(held, no_room(verdict.error or "", parts.driver_of(held).images), None)
            return self._turn.end(held, end_without_image(verdict.reason, verdict.error or ""), None)
        parts.write(held, stage=Stage.CREATED, container_id=container_id)
        held.maybe_made = False
        parts.step(held, Step.CREATED)
        if look is not None:
            self._resuming.tell(held, look)
        return True

    def start(self, held: Held) -> bool:
        parts = self._parts
        container_id = held.record.container_id
        assert container_id is not None
        if held.maybe_made and self._ran_already(held, container_id):
            self._turn.has_run(held, container_id)
            return True
        if held.want is not None:
            return self.end_unstarted(held)
        if self._claiming.full_spec(held) is None:  # after a restart: the server may have given the task away since
            return False
        try:
            if not self._mounting.stands(held) or self._has_other_cards(held, container_id):
                parts.driver_of(held).remove(container_id)  # it never ran
                parts.write(held, stage=Stage.CLAIMED, container_id=None)
                return True
        except CheckFailed as failed:
            return self._turn.end(held, end_without_image(failed.reason, failed.text), None)
        except NotThere:
            parts.write(held, stage=Stage.CLAIMED, container_id=None)  # gone before it ever started: made anew
            return True
        held.enter(Phase.STARTING)
        parts.step(held, Step.JOURNAL_START)
        parts.write(held, stage=Stage.STARTING, asked_mark=parts.boot, asked_mono=parts.clock())
        parts.step(held, Step.START)
        try:
            parts.driver_of(held).start(container_id)
        except NotThere:
            parts.write(held, stage=Stage.CLAIMED, container_id=None)  # gone before it ever started: made anew
            return True
        except EngineRefused as refusal:
            parts.write(held, start_error=engine_line(parts.masked(held, refusal.text)))
        return True

    def _has_other_cards(self, held: Held, container_id: str) -> bool:
        """Whether what its cards are on this node has changed since it was made. Raises CheckFailed."""
        if not by_place(held.record):
            return False
        other = moved(self._parts, held, self._parts.driver_of(held).inspect(container_id))
        if other is not None:
            log.info("task %s: %s; it is made anew", held.record.task_id, other)
        return other is not None

    def _ran_already(self, held: Held, container_id: str) -> bool:
        """Whether the journal is behind: its last words were lost, or somebody else started the container."""
        try:
            return self._parts.driver_of(held).inspect(container_id).started_at is not None
        except NotThere:
            return False

    def end_unstarted(self, held: Held) -> bool:
        """Asked to stop before anything was started."""
        if held.pulling:
            return False  # the pull was given up; its end comes back here
        if held.want is StopReason.STALE:
            verdict = Conclusion(Status.STOPPED, Reason.STOPPED_BY_OPERATOR, error="another attempt took over")
        else:
            verdict = Conclusion(Status.STOPPED, Reason.STOPPED_BY_OPERATOR, error="stopped before it was started")
        return self._turn.end(held, verdict, None)
