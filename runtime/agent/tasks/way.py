"""A task's way, from the claim to the forgotten container: what the next step is, and taking it.

``advance`` takes as many steps as it can and returns when something has to come first: the server's answer, an
image, a program's end. Whoever brings that calls ``advance`` again. Calls for one claim never overlap, each
step is written down before it acts, and a crash leaves nothing but "do the step of this stage again".
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Optional

from runtime.agent.drivers.driver import Facts
from runtime.agent.drivers.errors import EngineRefused, EngineUnavailable, NotThere
from runtime.agent.link.errors import Refused, Unavailable
from runtime.agent.loop import Backoff
from runtime.agent.tasks.checks import Checked, CheckFailed, check
from runtime.agent.tasks.claim import ClaimAnswer, carried_task, claim_update, is_ours, read_refusal
from runtime.agent.tasks.classify import NOT_RUN, Circumstances, Conclusion, Sent, StopReason, classify, start_failure
from runtime.agent.tasks.delivery import Outbound
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.images import engine_line
from runtime.agent.tasks.outages import Outages
from runtime.agent.tasks.parts import Claims, Parts
from runtime.agent.tasks.plan import card_options, container_plan, spare_name
from runtime.agent.tasks.pulling import Puller, end_without_image
from runtime.agent.tasks.records import Stage
from runtime.agent.tasks.steps import Step
from runtime.agent.tasks.volumes import identity_of
from runtime.agent.tasks.watch import Watch
from runtime.agent.tasks.zombies import ServerWord
from runtime.protocol.reasons import Reason
from runtime.protocol.states import Phase, Status
from runtime.protocol.tasks import Task, TaskSpec

log = logging.getLogger(__name__)

AGAIN_FIRST_S = 1.0
AGAIN_MAX_S = 20.0
REFUSED_PAUSE_S = 60.0
ENGINE_PATIENCE_S = 120.0
"""How long a claim that has not started waits for an engine that is away, before it is handed back."""

CARDS_PATIENCE_S = 60.0


class Way:
    """Advances claims on the workers of ``parts``."""

    def __init__(self, parts: Parts, claims: Claims, outages: Outages, word: ServerWord) -> None:
        self._parts = parts
        self._claims = claims
        self._outages = outages
        self._watch = Watch(parts, self.advance)
        self._outbound = Outbound(parts, claims, word, self.advance)
        self._puller = Puller(parts)
        self._backoff = Backoff(AGAIN_FIRST_S, AGAIN_MAX_S, least_s=AGAIN_FIRST_S / 2)

    def advance(self, held: Held) -> None:
        """Put the claim's next steps to the workers; any thread, returns at once."""
        self._parts.steps.submit(held.name, lambda: self._advance(held))

    def abandon(self, held: Held, outcome: str) -> None:
        """Another attempt, node or end is the valid one: end what runs, tell nobody, keep the record."""
        if not held.superseded:
            log.info("task %s (attempt %d) is given up: %s", held.record.task_id, held.key.attempt, outcome)
        held.superseded = True
        held.stop(StopReason.STALE)
        self.advance(held)

    def lost(self, held: Held) -> None:
        """The container had started, is gone, and the server still counts on it."""

        def conclude() -> None:
            if held.record.stage in (Stage.STARTING, Stage.RUNNING):
                text = "the container had started and is gone without a trace"
                self._end(held, Conclusion(Status.FAILED, Reason.LOST_CONTAINER, error=text), None)
                self._advance(held)

        self._parts.steps.submit(held.name, conclude)

    def _advance(self, held: Held) -> None:
        steps = {
            Stage.CLAIMING: self._claim,
            Stage.CLAIMED: self._prepare,
            Stage.CREATED: self._start,
            Stage.STARTING: self._look,
            Stage.RUNNING: self._look,
            Stage.CONCLUDED: self._deliver,
            Stage.DONE: self._clear,
        }
        while not self._parts.stop_event.is_set():
            try:
                if not steps[held.record.stage](held):
                    return
            except EngineUnavailable as away:
                self._engine_is_away(held, str(away))
                return

    # The claim

    def _claim(self, held: Held) -> bool:
        parts = self._parts
        if parts.client.control_plane_id not in (None, held.record.control_plane_id):
            self._again(held, REFUSED_PAUSE_S)  # another control plane answers now: it knows nothing of this claim
            return False
        parts.step(held, Step.SEND_CLAIM)
        try:
            task: Optional[Task] = parts.client.update_task(
                held.record.task_id, claim_update(parts.identity.node_id, held.record)
            )
        except Unavailable as error:
            self._again(held, error.retry_after)
            return False
        except Refused as refused:
            answer = read_refusal(refused.problem)
            if answer is ClaimAnswer.LATER:
                self._again(held, REFUSED_PAUSE_S)
                return False
            if answer is ClaimAnswer.LOST:
                log.info("task %s is not ours: %s", held.record.task_id, refused)
                self._forget(held)
                return False
            task = carried_task(refused.problem)
        parts.step(held, Step.CLAIM_STORED)
        if task is None or task.spec is None:
            parts.write(held, stage=Stage.CLAIMED)
            return True
        held.secret_spec = task.spec
        parts.write(held, stage=Stage.CLAIMED, spec=without_secrets(task.spec), gpus=tuple(task.gpus_assigned or ()))
        return True

    def _full_spec(self, held: Held) -> Optional[TaskSpec]:
        """The specification with its secrets; asked for again after a restart. None: not yet, or not ours."""
        if held.secret_spec is not None:
            return held.secret_spec
        parts, record = self._parts, held.record
        try:
            task = parts.client.task(record.task_id, record.claim_token)
        except Unavailable as error:
            self._again(held, error.retry_after)
            return None
        except Refused as refused:
            if refused.code == "task_not_found" and parts.client.control_plane_id == record.control_plane_id:
                held.superseded = True  # nothing was started yet: nothing is lost by believing it at once
                held.stop(StopReason.STALE)
                self.advance(held)
            else:
                self._again(held, REFUSED_PAUSE_S)
            return None
        if not is_ours(task, record, parts.identity.node_id) or task.spec is None:
            self.abandon(held, f"the server says {task.status.value}, attempt {task.attempt}, node {task.node_id}")
            return None
        held.secret_spec = task.spec
        parts.write(held, spec=without_secrets(task.spec), gpus=tuple(task.gpus_assigned or ()))
        return task.spec

    # Up to the start

    def _prepare(self, held: Held) -> bool:
        if self._stop_wanted(held):
            return self._end_unstarted(held)
        parts = self._parts
        spec = self._full_spec(held)
        if spec is None:
            return False
        parts.step(held, Step.CHECK)
        held.enter(Phase.CHECKING)
        if held.record.gpus and parts.snapshot().gpus is None and self._within(held, CARDS_PATIENCE_S):
            self._again(held, AGAIN_FIRST_S)
            return False
        try:
            checked = check(spec, held.record.gpus, parts.snapshot(), parts.settings)
        except CheckFailed as failed:
            return self._end(held, end_without_image(failed.reason, failed.text), None)
        if checked.dropped_env:
            log.warning("task %s: variables without a value were dropped: %s", held.record.task_id,
                        ", ".join(checked.dropped_env))  # fmt: skip
        made = self._own_container(held) if held.restored else None
        if made is not None:
            parts.write(held, stage=Stage.CREATED, container_id=made)
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
        """The container that an earlier run made for this very claim before it could write its id down."""
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
            self._end(held, verdict, None)
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
                self.advance(held)

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
        except NotThere as gone:
            held.image_ready = False  # somebody removed the image since
            held.tries += 1
            if held.tries < 3:
                return True
            return self._end(held, start_failure(gone.text), None)
        except EngineRefused as refusal:
            verdict = start_failure(refusal.text)
            return self._end(held, end_without_image(verdict.reason, verdict.error or ""), None)
        mounts = tuple((source.path, source.device, source.inode) for source in checked.sources)
        parts.write(held, stage=Stage.CREATED, container_id=container_id, mounts=mounts)
        parts.step(held, Step.CREATED)
        return True

    def _start(self, held: Held) -> bool:
        parts = self._parts
        container_id = held.record.container_id
        assert container_id is not None
        if held.want is not None:
            return self._end_unstarted(held)
        if self._full_spec(held) is None:  # after a restart: the server may have given the task away since
            return False
        if self._swapped(held):
            text = "a mount source was swapped after the check"
            return self._end(held, Conclusion(Status.FAILED, Reason.VOLUME_REJECTED, error=text), None)
        held.enter(Phase.STARTING)
        parts.step(held, Step.JOURNAL_START)
        parts.write(held, stage=Stage.STARTING)
        parts.step(held, Step.START)
        try:
            parts.driver.start(container_id)
        except NotThere:
            parts.write(held, stage=Stage.CLAIMED, container_id=None)  # gone before it ever started: made anew
            return True
        except EngineRefused as refusal:
            parts.write(held, start_error=engine_line(refusal.text))
        return True

    def _end_unstarted(self, held: Held) -> bool:
        """Asked to stop before anything was started."""
        if held.pulling:
            return False  # the pull was given up; its end comes back here
        if held.want is StopReason.STALE:
            verdict = Conclusion(Status.STOPPED, Reason.STOPPED_BY_OPERATOR, error="another attempt took over")
        else:
            verdict = Conclusion(Status.STOPPED, Reason.STOPPED_BY_OPERATOR, error="stopped before it was started")
        return self._end(held, verdict, None)

    def _swapped(self, held: Held) -> bool:
        return any(identity_of(path) != (device, inode) for path, device, inode in held.record.mounts)

    # From the start to the end

    def _look(self, held: Held) -> bool:
        """One inspection of a container that was told to start, and what follows from it."""
        parts = self._parts
        container_id = held.record.container_id
        if container_id is None:
            return False
        try:
            facts = parts.driver.inspect(container_id)
        except NotThere:
            held.alive = False
            held.enter(held.phase, "its container is gone")
            return False  # reconciliation decides
        held.engine_away_since = None
        held.alive = facts.running
        if facts.ended or (facts.state == "created" and held.record.start_error is not None):
            return self._ended(held, facts)
        if facts.state == "created":
            if held.want is not None:
                return self._end_unstarted(held)
            parts.write(held, stage=Stage.CREATED)  # the start call had no effect
            return True
        if held.record.stage is Stage.STARTING and facts.started_at is not None:
            parts.step(held, Step.STARTED)
            started = self._watch.started_mono(held, facts)
            parts.write(
                held, stage=Stage.RUNNING, started_mark=parts.boot, started_mono=started, started_wall=parts.wall()
            )
            held.secret_spec = None
            if held.record.mounts and self._swapped(held):
                held.stop(StopReason.VOLUME)
        self._watch.arm(held, facts)
        self._watch.note_ready(held)
        if held.want is not None or held.record.stop is not None:
            self._watch.end(held, facts)
        return False

    def _ended(self, held: Held, facts: Facts) -> bool:
        parts, record = self._parts, held.record
        parts.step(held, Step.ENDED)
        self._watch.disarm(held)
        stop = record.stop
        if stop is None and held.want is StopReason.STALE:
            held.superseded = True
        seen = Circumstances(
            stop=stop,
            start_error=record.start_error,
            missing_program=parts.driver.missing_program(facts.id) if facts.exit_code in NOT_RUN else None,
            host_restarted=record.started_mark is not None and record.started_mark != parts.boot,
            engine_restarted=self._outages.covers(facts.finished_at),
        )
        if stop is not None and stop.sent is Sent.INTENDED:
            log.info("task %s ended while its stop was on the way", record.task_id)
        return self._end(held, classify(facts, seen), facts)

    def _end(self, held: Held, conclusion: Conclusion, facts: Optional[Facts]) -> bool:
        self._watch.disarm(held)
        self._outbound.conclude(held, conclusion, facts)
        return True

    # After the end

    def _deliver(self, held: Held) -> bool:
        if held.superseded:
            self._outbound.archive(held, "superseded")
            return True
        self._outbound.report(held)
        return False

    def _clear(self, held: Held) -> bool:
        self._outbound.remove(held)
        return False

    def _forget(self, held: Held) -> None:
        self._parts.journal.forget(held.key)
        self._claims.drop(held.key)

    # Waiting

    def _again(self, held: Held, after_s: Optional[float] = None) -> None:
        """Try the present step again later."""
        pause = max(self._backoff.next(), after_s or 0.0)
        self._parts.timers.after(("again", held.name), pause, lambda: self.advance(held))

    def _within(self, held: Held, patience_s: float) -> bool:
        return self._parts.clock() - held.taken_at < patience_s

    def _engine_is_away(self, held: Held, text: str) -> None:
        """Nothing is known. What had started waits for ever; what had not is handed back after a while."""
        now = self._parts.clock()
        if held.engine_away_since is None:
            held.engine_away_since = now
        unstarted = held.record.stage is Stage.CLAIMED
        if unstarted and now - held.engine_away_since >= ENGINE_PATIENCE_S:
            self._end(held, end_without_image(Reason.ENGINE_UNAVAILABLE, text), None)
            self.advance(held)
            return
        held.detail = text
        self._again(held)


def without_secrets(spec: TaskSpec) -> TaskSpec:
    """The specification without env values and registry credentials, for the disk."""
    return dataclasses.replace(spec, env=None, registry_auth=None)
