"""A run from its first event to its end: events become the run's state, what moved is shown, Ctrl-C is obeyed, and no
process is left behind."""

from __future__ import annotations

import queue
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.cli.errors import CliError
from runtime.fleet import children
from runtime.fleet.folder import Folder
from runtime.fleet.interrupts import Interrupts
from runtime.fleet.job import Job, Order
from runtime.fleet.progress import Progress, Stage
from runtime.fleet.reasons import Line
from runtime.fleet.screen import Guarded
from runtime.fleet.summary import Stop

TICK_S = 0.25
GRACE_S = 5.0
"""How long Ansible's processes may take to end when they are asked to."""


@dataclass(frozen=True)
class End:
    """``rc``: Ansible's exit code (None: it was not left to end). ``faults``: our own, with their tracebacks; ``left``:
    processes that the kernel does not let go of."""

    rc: int | None
    stop: Stop | None
    seconds: float
    faults: tuple[str, ...] = ()
    left: tuple[int, ...] = ()


def conduct(order: Order, folder: Folder, progress: Progress, screen: Guarded, interrupts: Interrupts) -> End:
    """Run it, and return when nothing of it is left. Raises CliError where Ansible could not be started."""
    began = time.monotonic()
    children.adopt_orphans()
    job, obeyed, faults = Job(order, folder), None, []
    job.start()
    try:
        while True:
            event = _next(job)
            at = time.monotonic() - began
            if event is None:
                break
            if event:
                try:
                    screen.lines(progress.apply(event, at), progress, at)
                except Exception:  # an event that is not as we know them is no reason to stop a roll-out
                    faults.append(traceback.format_exc())
                _show_output(order, event, screen)
            if interrupts.asked is not obeyed:
                obeyed = interrupts.asked
                screen.lines([_obey(obeyed, folder, progress)], progress, at)
                if obeyed is Stop.NOW:
                    children.end(GRACE_S)
            screen.tick(progress, at)
    finally:
        # Also ssh's masters, which would wait for a next run.
        left = children.end(GRACE_S)
        job.wait()
        children.reap()
        screen.close()
    if job.fault is not None:
        raise CliError(f"Ansible could not be run: {type(job.fault).__name__}: {job.fault}")
    # A signal of its own kind may have ended Ansible by the time that we were asked.
    return End(job.rc if obeyed is not Stop.NOW else None, obeyed, time.monotonic() - began, tuple(faults), tuple(left))


def _next(job: Job) -> Mapping[str, Any] | None:
    """The next event; empty when none came for a moment, None when there are no more."""
    try:
        return job.events.get(timeout=TICK_S)
    except queue.Empty:
        return {}


def _show_output(order: Order, event: Mapping[str, Any], screen: Guarded) -> None:
    text = str(event.get("stdout") or "")
    if text and (order.verbosity or (order.diff and event.get("event") == "runner_on_file_diff")):
        screen.output(text)


def _obey(stop: Stop | None, folder: Folder, progress: Progress) -> Line:
    if stop is Stop.NOW:
        return Line("stopping at once; what is under way stays half done, and the next run sets it right")
    folder.stop.touch()
    count = progress.count(Stage.UNDER_WAY)
    under_way = f"{count} host{'s' * (count != 1)} under way will be finished" if count else "nothing is under way"
    return Line(f"stopping: {under_way}, and no further wave begins; Ctrl-C once more stops at once")
