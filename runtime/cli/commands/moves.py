"""``heterofleet tasks sleep``, ``wake``, ``reschedule``: orders to a task that goes on, and waiting until it is so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

import click

from runtime.cli.client import part
from runtime.cli.context import Invocation, remote
from runtime.cli.errors import ExitCode
from runtime.cli.follow import Watcher, end_sentence, has_ended
from runtime.cli.output import emit, say
from runtime.cli.values import Duration
from runtime.protocol.routes import TASKS
from runtime.protocol.states import Status

TASK = click.argument("task_id", metavar="TASK")
TIMEOUT = click.option("--wait-timeout", type=Duration(), help="Wait at most this long (exit code 7).")


@click.command()
@TASK
@click.option("--wait", is_flag=True, help="Wait until it sleeps.")
@TIMEOUT
@remote
def sleep(call: Invocation, task_id: str, wait: bool, wait_timeout: Optional[float]) -> int:
    """Put TASK to sleep: its container is stopped and kept, and its cards are free."""
    return _carry_out(call, task_id, wait or wait_timeout is not None, wait_timeout, _SLEEP)


@click.command()
@TASK
@click.option("--wait", is_flag=True, help="Wait until it runs.")
@TIMEOUT
@remote
def wake(call: Invocation, task_id: str, wait: bool, wait_timeout: Optional[float]) -> int:
    """Let TASK, which sleeps, run again: the same container on the same cards, as soon as they are free."""
    return _carry_out(call, task_id, wait or wait_timeout is not None, wait_timeout, _WAKE)


@click.command()
@TASK
@click.option("--wait", is_flag=True, help="Wait until a node has it again.")
@TIMEOUT
@remote
def reschedule(call: Invocation, task_id: str, wait: bool, wait_timeout: Optional[float]) -> int:
    """Take TASK from its node and place it anew; a copy that still runs there ends when its node is heard."""
    return _carry_out(call, task_id, wait or wait_timeout is not None, wait_timeout, _RESCHEDULE)


@dataclass(frozen=True)
class _Order:
    """``reached``: the status in which the task is as ordered; ``what`` completes "it has not ..."."""

    action: str
    reached: Status
    ordered: str
    what: str


_SLEEP = _Order("sleep", Status.SLEEPING, "will be put to sleep", "fallen asleep")
_WAKE = _Order("wake", Status.RUNNING, "will be woken", "been woken")
_RESCHEDULE = _Order("reschedule", Status.RUNNING, "will be placed again", "been taken by a node")


def _carry_out(call: Invocation, task_id: str, wait: bool, wait_s: Optional[float], order: _Order) -> int:
    """The command's exit code: 1 when the task ended instead."""

    def reached(task: Mapping[str, Any]) -> bool:
        return task.get("status") == order.reached.value

    def told(task: Mapping[str, Any]) -> None:
        node = f" on {task['node_id']}" if task.get("node_id") else ""
        if has_ended(task):
            say(end_sentence(task))
        elif wait:
            say(f"task {task_id} is {task.get('status')}{node}")
        else:
            say(f"task {task_id} {order.ordered}")

    answer = call.client.post(f"{TASKS}/{part(task_id)}/{order.action}")
    if wait:
        answer = Watcher(call.client, task_id, wait_s=wait_s).until(reached, order.what)
    emit(answer, call.output, told)
    return ExitCode.FAILED if has_ended(answer.body) else 0
