"""Tasks over HTTP: parse, authorise, call the service, wrap the answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta

import flask

from runtime.protocol import routes
from runtime.protocol.codec import encode
from runtime.protocol.problems import Problem
from runtime.protocol.states import ON_NODE, Kind, Status
from runtime.protocol.tasks import CheckpointResume, LogChunk, Reclaim, Task, TaskList, TaskUpdate
from runtime.protocol.times import now, to_wire
from runtime.server import validation
from runtime.server.api import query
from runtime.server.auth import AgentCaller, Operator, agent_caller, either, operator, parts
from runtime.server.services import logs
from runtime.server.services.tasks import checkpoints, claims, listing, operate, report, rows, view, why
from runtime.server.services.tasks import create as creation
from runtime.server.services.tasks.check import LABEL, LABEL_VALUE
from runtime.server.services.tasks.fleet import vendors_of

blueprint = flask.Blueprint("tasks", __name__)

LIST_LIMIT = 1000
LABEL_LIMIT = 50
FOLLOW_S = 30
"""How long a node sends a log live after somebody asked for it with follow; longer where beats are far apart."""
FOLLOW_BEATS = 3

Answer = tuple[flask.Response, int]


@blueprint.post(routes.TASKS)
def create() -> tuple[flask.Response, int, dict[str, str]]:
    who = operator("admin")
    stored, new = creation.create(
        parts().db,
        parts().vault,
        flask.request.get_data(),
        actor=who.name,
        fleet_vendors=vendors_of(parts().presence.views()),
        default_vendor=parts().settings.default_vendor,
        now=now(),
    )
    location = f"{routes.TASKS}/{stored.row['id']}"
    return _task(stored), 201 if new else 200, {"Location": location}


@blueprint.get(routes.TASKS)
def listed() -> flask.Response:
    who = either()
    if isinstance(who, AgentCaller):
        return _listed_for_agent(who)
    with parts().db.read() as connection:
        found, cursor = listing.for_operator(
            connection,
            statuses=query.choices("status", Status),
            node_id=query.text("node_id"),
            kind=query.choice("kind", Kind),
            labels=_labels(),
            limit=query.number("limit", 100, 1, LIST_LIMIT),
            cursor=flask.request.args.get("cursor"),
        )
    tasks = [view.task(stored, parts().presence) for stored in found]
    return flask.jsonify(encode(TaskList(tasks, cursor)))


def _listed_for_agent(who: AgentCaller) -> flask.Response:
    node_id = flask.request.args.get("node_id")
    statuses = query.choices("status", Status)
    if not node_id or statuses is None:
        raise Problem(
            "node_scope_required",
            "With the system key, tasks are listed by node_id and status together; both are needed.",
        )
    who.require_scope(node_id)
    limit = query.number("limit", 100, 1, LIST_LIMIT)
    if parts().rollback.unsettled(who.node_id):
        # It may have run since: nobody is invited to claim it.
        statuses = [status for status in statuses if status is not Status.SCHEDULED]
    with parts().db.read() as connection:
        found = listing.for_agent(connection, who.node_id, statuses, limit)
    return flask.jsonify(encode(TaskList([view.task(stored, parts().presence) for stored in found])))


@blueprint.get(f"{routes.TASKS}/<task_id>")
def get(task_id: str) -> flask.Response:
    who = either()
    with _unknown_while_rolled_back(who), parts().db.read() as connection:
        row = rows.find(connection, task_id)
        (stored,) = view.read(connection, [row])
    if isinstance(who, Operator):
        return _task(stored)
    if row["node_id"] != who.node_id:
        return flask.jsonify(view.outline(row))
    token = flask.request.headers.get(routes.HEADER_CLAIM)
    mine = token is not None and claims.owns(row, _reporter(who), row["attempt"], token)
    return _task(stored, secrets=mine)


@blueprint.put(f"{routes.TASKS}/<task_id>")
def update(task_id: str) -> flask.Response:
    who = agent_caller()
    body = validation.parse(TaskUpdate, flask.request.get_data(), code="invalid_task")
    who.require_scope(body.node_id)
    with _unknown_while_rolled_back(who):
        answer = report.report(
            parts().db,
            _reporter(who),
            task_id,
            body,
            now(),
            forget=parts().board.forget,
            cordoned=parts().presence.reread_cordon,
        )
    return _reported(answer)


@blueprint.post(f"{routes.TASKS}/<task_id>/reclaim")
def reclaim(task_id: str) -> flask.Response:
    who = agent_caller()
    body = validation.parse(Reclaim, flask.request.get_data(), code="invalid_task")
    who.require_scope(body.node_id)
    if body.instance_id != who.instance_id:
        raise Problem("instance_mismatch", f"The body speaks for instance {body.instance_id}, the header for another.")
    with _unknown_while_rolled_back(who):
        answer = claims.reclaim(parts().db, _reporter(who), task_id, body)
    return _reported(answer)


@blueprint.post(f"{routes.TASKS}/<task_id>/checkpoint-resume")
def checkpoint_resume(task_id: str) -> tuple[str, int]:
    who = agent_caller()
    body = validation.parse(CheckpointResume, flask.request.get_data(), code="invalid_task")
    with _unknown_while_rolled_back(who):
        checkpoints.note(parts().db, _reporter(who), task_id, body)
    return "", 204


@blueprint.post(f"{routes.TASKS}/<task_id>/logs")
def append_logs(task_id: str) -> tuple[str, int]:
    who = agent_caller()
    body = validation.parse(LogChunk, flask.request.get_data(), code="invalid_task")
    with _unknown_while_rolled_back(who):
        logs.append(parts().db, _reporter(who), task_id, body)
    return "", 204


@blueprint.get(f"{routes.TASKS}/<task_id>/logs")
def read_logs(task_id: str) -> flask.Response:
    who = operator("viewer")
    with _unknown_while_rolled_back(who), parts().db.read() as connection:
        row = rows.find(connection, task_id)
        attempt = query.number("attempt", rows.newest_given(connection, row), 0, 2**31 - 1)
        text = logs.read(
            connection,
            row["uid"],
            attempt,
            since=query.number("from", 0, 0, 2**53),
            tail=query.number("tail", 0, 0, 2**31 - 1) if "tail" in flask.request.args else None,
        )
    if query.flag("follow") and Status(row["status"]) in ON_NODE and attempt == row["attempt"]:
        # Nobody is kept waiting: the reader asks again from where it is, and the node sends live meanwhile.
        lasts_s = max(FOLLOW_S, FOLLOW_BEATS * parts().settings.heartbeat_interval_s)
        parts().board.want_logs(row["uid"], to_wire(now() + timedelta(seconds=lasts_s)))
        logs.tell_other_processes(parts().db, row, now(), lasts_s)
    return flask.jsonify(encode(text))


@blueprint.get(f"{routes.TASKS}/<task_id>/why")
def why_task(task_id: str) -> flask.Response:
    who = operator("viewer")
    with _unknown_while_rolled_back(who), parts().db.read() as connection:
        found = why.of_task(connection, task_id, parts().presence, parts().settings.mps_max, now())
    return flask.jsonify(encode(found))


@blueprint.post(f"{routes.TASKS}/<task_id>/<any(stop, sleep, wake, reschedule):action>")
def act(task_id: str, action: str) -> Answer:
    who = operator("admin")
    with _unknown_while_rolled_back(who):
        return _task(operate.act(parts().db, action, task_id, who.name, now())), 202


@blueprint.delete(f"{routes.TASKS}/<task_id>")
def delete(task_id: str) -> Answer | tuple[str, int]:
    who = operator("admin")
    force, forget = query.flag("force"), parts().board.forget
    with _unknown_while_rolled_back(who):
        left = operate.delete(parts().db, task_id, who.name, now(), force=force, forget=forget)
    return ("", 204) if left is None else (_task(left), 202)


@contextlib.contextmanager
def _unknown_while_rolled_back(who: AgentCaller | Operator) -> Iterator[None]:
    """While the database is known to be put back, a task that it does not hold may well exist."""
    try:
        yield
    except Problem as problem:
        rollback = parts().rollback
        unsettled = rollback.active or (isinstance(who, AgentCaller) and rollback.unsettled(who.node_id))
        if problem.code == "task_not_found" and unsettled:
            raise Problem(
                "database_rolled_back",
                "The control plane's database was put back, so it cannot say whether this task exists; keep what "
                "you have until an operator has accepted it.",
            ) from None
        raise


def _reporter(who: AgentCaller) -> claims.Reporter:
    return claims.Reporter(who.node_id, who.instance_id)


def _reported(answer: claims.Answer) -> flask.Response:
    task = _whole(answer.stored, secrets=answer.mine and (answer.conflict or answer.claimed))
    if answer.conflict:
        raise claims.conflict(answer, encode(task) if answer.mine else None)
    return flask.jsonify(encode(task))


def _whole(stored: view.Stored, *, secrets: bool) -> Task:
    return view.task(stored, parts().presence, parts().vault if secrets else None)


def _task(stored: view.Stored, *, secrets: bool = False) -> flask.Response:
    return flask.jsonify(encode(_whole(stored, secrets=secrets)))


def _labels() -> list[tuple[str, str]]:
    pairs = []
    wanted = flask.request.args.getlist("label")
    if len(wanted) > LABEL_LIMIT:
        raise query.bad("label", f"{len(wanted)} of them", f"at most {LABEL_LIMIT}")
    for given in wanted:
        name, equals, value = given.partition("=")
        if not equals or LABEL.fullmatch(name) is None or LABEL_VALUE.fullmatch(value) is None:
            raise query.bad("label", given, "NAME=VALUE")
        pairs.append((name, value))
    return pairs
