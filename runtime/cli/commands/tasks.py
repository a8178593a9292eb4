"""``heterofleet tasks``: look at tasks, stop and delete them; what else can be ordered is in modules beside it."""

from __future__ import annotations

from typing import Any, Optional

import click

from runtime.cli import show
from runtime.cli.client import part
from runtime.cli.commands import moves
from runtime.cli.commands.run import run
from runtime.cli.context import Invocation, confirm, remote
from runtime.cli.follow import LogReader, Watcher, end_sentence, has_ended
from runtime.cli.output import Column, emit, print_fields, print_table, say
from runtime.cli.task_spec import usage
from runtime.cli.terminal import LogOutput
from runtime.cli.values import Duration, Pair
from runtime.cli.why import print_why
from runtime.protocol.codec import decode
from runtime.protocol.nodes import EventKind
from runtime.protocol.reasons import Reason
from runtime.protocol.routes import EVENTS, TASKS
from runtime.protocol.states import Kind, Status
from runtime.protocol.tasks import LogText

COLUMNS = (
    Column("ID", lambda t: show.text(t.get("id")), keep=True),
    Column("NAME", lambda t: show.text(t.get("name"))),
    Column("STATUS", lambda t: show.text(t.get("status")), keep=True),
    Column("NODE", lambda t: show.text(t.get("node_id"))),
    Column("DETAIL", lambda t: _detail(t)),
    Column("AGE", lambda t: show.age(t.get("created_at")), keep=True, right=True),
)

ATTEMPT_COLUMNS = (
    Column("ATTEMPT", lambda a: show.text(a.get("attempt")), keep=True, right=True),
    Column("NODE", lambda a: show.text(a.get("node_id"))),
    Column("STARTED", lambda a: show.clock(a.get("started_at")), keep=True),
    Column("ENDED", lambda a: show.clock(a.get("ended_at")), keep=True),
    Column("EXIT", lambda a: show.text(a.get("exit_code")), keep=True, right=True),
    Column("REASON", lambda a: show.text(a.get("reason")), keep=True),
)

CHECKPOINT_COLUMNS = (
    Column("ATTEMPT", lambda e: show.text(e.get("attempt")), keep=True, right=True),
    Column("CHECKPOINT", lambda e: show.text(e.get("detail")), wrap=True),
)


@click.group()
def tasks() -> None:
    """Work on the fleet."""


for command in (run, moves.sleep, moves.wake, moves.reschedule):
    tasks.add_command(command)


@tasks.command("list")
@click.option("--status", metavar="STATUS,...", help="Only these states.")
@click.option("--node", "node_id", metavar="NODE", help="Only tasks of this node.")
@click.option("--kind", type=click.Choice([kind.value for kind in Kind]), help="Only this kind.")
@click.option("--label", type=Pair(), help="Only tasks with this label.")
@click.option("--limit", type=click.IntRange(1, 1000), help="At most this many.  [default: 100]")
@click.option("--cursor", help="Go on after a list that was cut.")
@remote
def list_tasks(
    call: Invocation,
    status: Optional[str],
    node_id: Optional[str],
    kind: Optional[str],
    label: Optional[tuple[str, str]],
    limit: Optional[int],
    cursor: Optional[str],
) -> None:
    """Tasks, newest first."""
    query = {
        "status": status,
        "node_id": node_id,
        "kind": kind,
        "label": "=".join(label) if label else None,
        "limit": limit,
        "cursor": cursor,
    }
    answer = call.client.get(TASKS, query)
    emit(answer, call.output, lambda body: print_table(COLUMNS, body.get("tasks") or [], "no such tasks"))
    if answer.body.get("next_cursor"):
        say(f"there are more: --cursor {answer.body['next_cursor']}")


@tasks.command("show")
@click.argument("task_id", metavar="TASK")
@remote
def show_task(call: Invocation, task_id: str) -> None:
    """One task: where it stands, how its attempts ended."""
    answer = call.client.get(f"{TASKS}/{part(task_id)}")
    emit(answer, call.output, _details)
    if call.output == "table" and (answer.body.get("spec") or {}).get("checkpoint_path"):
        _checkpoints(call, answer.body)


@tasks.command()
@click.argument("task_id", metavar="TASK")
@click.option("-f", "--follow", is_flag=True, help="Go on until the task ends.")
@click.option("--tail", type=click.IntRange(0), metavar="LINES", help="Begin with the last LINES lines.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Output of this attempt.  [default: the newest]")
@remote
def logs(call: Invocation, task_id: str, follow: bool, tail: Optional[int], attempt: Optional[int]) -> None:
    """What TASK wrote. -o json shows what is held now, with its byte positions."""
    if follow and (call.output != "table" or attempt is not None):
        raise usage("-f follows the newest attempt as text; leave out -f, or -o and --attempt")
    answer = call.client.get(
        f"{TASKS}/{part(task_id)}/logs", {"attempt": attempt, "follow": "true" if follow else None}
    )
    if call.output != "table":
        emit(answer, call.output, lambda _: None)
        return
    log = decode(LogText, answer.body)
    pieces: list[str] = []
    reader = LogReader(call.client, task_id, pieces.append, log.attempt)
    reader.take(log)
    task = call.client.get(f"{TASKS}/{part(task_id)}").body
    newest = log.attempt == task.get("attempt")
    if has_ended(task) and newest:
        reader.finish(task.get("log_tail"))
    elif newest and not follow and task.get("status") == Status.RUNNING.value:
        reader.catch_up()
    lines = "".join(pieces).splitlines(keepends=True)
    with LogOutput() as output:
        output.write("".join(lines if tail is None else lines[max(0, len(lines) - tail) :]))
        if follow:
            reader.write = output.write
            ended = Watcher(call.client, task_id, log=reader).until_ended()
    if follow:
        say(end_sentence(ended.body))


@tasks.command()
@click.argument("task_id", metavar="TASK")
@click.option("--wait", is_flag=True, help="Wait until it has ended.")
@click.option("--wait-timeout", type=Duration(), help="Wait at most this long (exit code 7).")
@remote
def stop(call: Invocation, task_id: str, wait: bool, wait_timeout: Optional[float]) -> None:
    """Stop TASK: its grace first, then the end. What it wrote stays readable."""
    answer = call.client.post(f"{TASKS}/{part(task_id)}/stop")
    if wait or wait_timeout is not None:
        answer = Watcher(call.client, task_id, wait_s=wait_timeout).until_ended()
    emit(answer, call.output, lambda body: say(_stop_sentence(task_id, body)))


@tasks.command()
@click.argument("task_id", metavar="TASK")
@click.option("--force", is_flag=True, help="Drop the record now, without hearing from the node.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@remote
def delete(call: Invocation, task_id: str, force: bool, yes: bool) -> None:
    """Remove TASK; a running one is stopped first, and its record goes when its container has gone."""
    confirm(f"Delete task {task_id}" + (", whatever its node says" if force else "") + "?", yes)
    answer = call.client.delete(f"{TASKS}/{part(task_id)}", {"force": "true" if force else None})
    gone = answer.status == 204
    emit(answer, call.output, lambda _: None)
    say(f"task {task_id} is deleted" if gone else f"task {task_id} is being stopped; its record goes when it has ended")


@tasks.command()
@click.argument("task_id", metavar="TASK")
@remote
def why(call: Invocation, task_id: str) -> None:
    """Why TASK is where it is: every condition on every node, the nearest miss first."""
    emit(call.client.get(f"{TASKS}/{part(task_id)}/why"), call.output, print_why)


def _stop_sentence(task_id: str, body: Any) -> str:
    return end_sentence(body) if has_ended(body) else f"task {task_id} will be stopped"


def _detail(task: Any) -> str:
    """How an ended task ended; where one that has not ended stands, and what is odd about it."""
    reason, code, phase, desired = (task.get(name) for name in ("reason", "exit_code", "phase", "desired"))
    if has_ended(task):
        if reason in (None, Reason.EXITED.value):
            return show.UNKNOWN if code is None else f"exit {code}"
        return "by operator" if reason == Reason.STOPPED_BY_OPERATOR.value else show.text(reason)
    words = [phase] if phase and phase != task.get("status") else []
    if task.get("stalled"):
        words.append("stalled")
    if task.get("node_lost_since"):
        words.append("node lost")
    if desired in ("stop", "delete") and phase != "stopping":
        words.append(f"to {desired}")
    asleep = task.get("status") == Status.SLEEPING.value
    if desired == ("run" if asleep else "sleep"):
        words.append("to wake" if asleep else "to sleep")
    return ", ".join(words) or show.UNKNOWN


def _status(task: Any) -> str:
    detail = show.UNKNOWN if has_ended(task) else _detail(task)
    return show.text(task.get("status")) + ("" if detail == show.UNKNOWN else f", {detail}")


def _details(task: Any) -> None:
    cards = [
        f"{g.get('uuid')} ({show.text(g.get('model') or g.get('vendor'))})" for g in task.get("gpus_assigned") or []
    ]
    endpoints = [
        f"{e.get('container_port')} at {show.text(e.get('address'))}:{show.text(e.get('port'))}"
        for e in task.get("endpoints") or []
    ]
    spec = task.get("spec") or {}
    print_fields(
        [
            ("task", task.get("id")),
            ("uid", task.get("uid")),
            ("name", show.text(task.get("name"))),
            ("status", _status(task)),
            ("ready", None if task.get("ready") is None else show.text(task["ready"])),
            ("kind", f"{show.text(task.get('kind'))} by {show.text(task.get('driver'))}"),
            ("image", spec.get("image")),
            ("node", show.text(task.get("node_id"))),
            ("cards", "\n".join(cards) or None),
            ("endpoints", "\n".join(endpoints) or None),
            ("starts", show.share(task.get("starts"), task.get("max_attempts"))),
            ("created", show.text(task.get("created_at"))),
            ("started", show.text(task.get("started_at"))),
            ("finished", show.text(task.get("finished_at"))),
            ("exit code", show.text(task.get("exit_code"))),
            ("reason", f"{task['reason']} ({show.text(task.get('reason_class'))})" if task.get("reason") else None),
            ("error", task.get("error")),
            ("labels", show.text(task["labels"]) if task.get("labels") else None),
            *(("warning", f"{w.get('code')}: {w.get('detail')}") for w in task.get("warnings") or []),
        ]
    )
    if task.get("attempts"):
        click.echo()
        print_table(ATTEMPT_COLUMNS, task["attempts"], "no attempts")


def _checkpoints(call: Invocation, task: Any) -> None:
    """From where each attempt went on."""
    query = {"task": task.get("id"), "kind": EventKind.CHECKPOINT_RESUME.value, "limit": 1000}
    found = call.client.get(EVENTS, query).body.get("events") or []
    if found:
        click.echo()
        print_table(CHECKPOINT_COLUMNS, found, "no checkpoints")
