"""``heterofleet server accept-restore``: the operator's word that ends the state ``rolled_back``.

It works on the database itself, as ``server token`` does, and not by HTTP: whoever may read the server's settings on
its machine may do this, no address, certificate or token has to be guessed, it is the same for SQLite and PostgreSQL,
and everything happens in one transaction. A running server notices within a second.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runtime.protocol import times
from runtime.protocol.problems import Problem
from runtime.server.command_line import fail, loaded_settings, open_database, table, with_settings
from runtime.server.exit_codes import EXIT_DECLINED, EXIT_REFUSED, EXIT_UNAVAILABLE

if TYPE_CHECKING:
    from runtime.server.services.restore.carrying import Result
    from runtime.server.services.restore.plan import Decision

ALL = "all"
LOOK_EVERY_S = 0.5
SLACK_S = 2.0


@click.command("accept-restore")
@click.option("--dry-run", is_flag=True, help="Show what is found and what would be done; change nothing.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
@click.option("--adopt", multiple=True, metavar="ID", help="Adopt this orphan (task id or uid), or `all`: the default.")
@click.option("--stop", multiple=True, metavar="ID", help="Stop this orphan (task id or uid), or `all`.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--force",
    is_flag=True,
    help="Also while nodes have not told what they hold: that stays with them, and is asked for when they come.",
)
@with_settings
def accept_restore(
    dry_run: bool,
    output: str,
    adopt: Sequence[str],
    stop: Sequence[str],
    yes: bool,
    force: bool,
    config: Path | None,
    **overrides: str | None,
) -> None:
    """Accept that the database was put back: adopt or stop what nodes hold of the lost time, and go on.

    Conclusions are always adopted: their nodes tell them again. Exit codes: 0 done, or there was nothing to do; 6
    refused (nodes were not heard, ids are taken); 8 declined; 69, 73, 78 as for `server`.
    """
    choices, default = _choices(adopt, stop)
    settings = loaded_settings(config, overrides).settings
    from runtime.server.services.restore import accept as restore

    patience_s = restore.patience(settings.heartbeat_interval_s).total_seconds()
    db = open_database(settings)
    try:
        found = _when_told(lambda: restore.look(db, times.now(), patience_s), patience_s + SLACK_S)
        _refuse_unknown(found, choices)
        if dry_run or found.facts.nothing_to_do:
            _show(found, output, choices, default)
            return
        if output == "table":
            _show(found, output, choices, default)
        if not yes:
            missing = None if force else restore.objection(found.plan)
            if not _agreed(missing):
                fail(EXIT_DECLINED, "declined; nothing was done")
            force = force or missing is not None
        done = restore.accept(
            db,
            choices,
            default,
            times.now(),
            force=force,
            patience_s=patience_s,
            mps_max=settings.mps_max,
        )
    except Problem as problem:
        fail(EXIT_UNAVAILABLE, f"{problem.detail} Nothing was done.")
    finally:
        db.close()
    if output == "json":
        _show(done, output, choices, default)
    if done.refused is not None:
        fail(EXIT_REFUSED, done.refused)
    if output == "table":
        click.echo(_summary(done))


def _choices(adopt: Sequence[str], stop: Sequence[str]) -> tuple[dict[str, str], str]:
    if ALL in adopt and ALL in stop:
        raise click.UsageError("--adopt all and --stop all together say nothing")
    both = (set(adopt) & set(stop)) - {ALL}
    if both:
        raise click.UsageError(f"{', '.join(sorted(both))}: --adopt or --stop, not both")
    choices = {**dict.fromkeys(adopt, "adopt"), **dict.fromkeys(stop, "stop")}
    choices.pop(ALL, None)
    return choices, "stop" if ALL in stop else "adopt"


def _when_told(look: Callable[[], Result], patience_s: float) -> Result:
    """What is known once the nodes that were heard have said all, at the latest after ``patience_s``."""
    deadline = time.monotonic() + patience_s
    said = False
    while True:
        found = look()
        if not found.plan.waiting or time.monotonic() >= deadline:
            return found
        if not said:
            names = ", ".join(word.node_id for word in found.plan.waiting[:10])
            click.echo(f"heterofleet server: waiting for what {names} will tell", err=True)
            said = True
        time.sleep(LOOK_EVERY_S)


def _refuse_unknown(found: Result, choices: dict[str, str]) -> None:
    known = {name for told in found.facts.orphans for name in (told.uid, told.task_id)}
    unknown = sorted(choices.keys() - known)
    if unknown and not found.facts.nothing_to_do:
        raise click.UsageError(f"no node has told of {', '.join(unknown)}; --dry-run shows what there is")


def _agreed(objection: str | None) -> bool:
    if objection is not None:
        click.echo(objection, err=True)
    question = "Accept the database as it is, and do this?"
    try:
        return click.confirm(question if objection is None else f"{question} Also without that?", err=True)
    except click.Abort:
        click.echo(err=True)
        return False


def document(found: Result, choices: dict[str, str], default: str) -> dict[str, Any]:
    """The whole of it as JSON."""
    facts, decided = found.facts, found.plan
    missing = {word.node_id for word in decided.unheard} | {word.node_id for word in decided.waiting}
    return {
        "rolled_back_since": facts.since,
        "revision": facts.revision,
        "lost_from": facts.lost_from,
        "seen_revision": facts.seen_revision,
        "nothing_to_do": facts.nothing_to_do,
        "done": found.done,
        "refused": found.refused,
        "nodes": [
            {
                "id": word.node_id,
                "state": word.state.value if word.state is not None else None,
                "last_seen_at": word.last_seen_at,
                "heard": word.heard,
                "told": word.told and word.node_id not in missing,
            }
            for word in facts.nodes
        ],
        "orphans": [
            {
                "task_id": decision.told.task_id,
                "uid": decision.told.uid,
                "attempt": decision.told.attempt,
                "node_id": decision.told.node_id,
                "container_id": decision.told.entry.container_id or None,
                "state": decision.told.state.value,
                "exit_code": decision.told.entry.exit_code,
                "reason": decision.told.entry.reason,
                "gpus": decision.told.entry.gpus,
                "action": _action(decision, decision.told.uid in facts.tasks, choices, default),
                "why": decision.why,
            }
            for decision in decided.decisions
        ],
        "requeue": [row.task_id for row in decided.requeue],
        "adopted": found.adopted,
        "stopped": found.stopped,
        "doubled_cards": found.doubled_cards,
        "next_revision": None if facts.nothing_to_do else decided.revision,
        "next_attempt": None if facts.nothing_to_do else decided.attempt,
    }


def _action(decision: Decision, known: bool, choices: dict[str, str], default: str) -> str:
    from runtime.server.services.restore.plan import STOP, Verdict, is_to_stop

    stops = is_to_stop(decision.told, has_row=known, choices=choices, default=default)
    return STOP if decision.verdict is Verdict.ADOPT and stops else decision.verdict.value


def _show(found: Result, output: str, choices: dict[str, str], default: str) -> None:
    whole = document(found, choices, default)
    if output == "json":
        click.echo(json.dumps(whole, indent=2))
        return
    if found.facts.nothing_to_do:
        click.echo("The database is not known to be put back: there is nothing to accept.")
        return
    if found.facts.since is not None:
        click.echo(
            f"The database was put back (noticed {whole['rolled_back_since']}): it is at revision {whole['revision']}, "
            f"nodes have seen {whole['seen_revision']}."
        )
    else:
        click.echo("Nodes have come that were not heard when the restored database was accepted.")
    words = {True: "yes", False: "no"}
    table(
        ["node", "state", "last seen", "heard since", "told what it holds"],
        [
            [
                node["id"],
                node["state"] or "",
                node["last_seen_at"] or "never",
                words[node["heard"]],
                words[node["told"]],
            ]
            for node in whole["nodes"]
        ],
    )
    if whole["orphans"]:
        table(
            ["task", "attempt", "node", "is", "then", "why"],
            [
                [one["task_id"], str(one["attempt"]), one["node_id"], one["state"], one["action"], one["why"]]
                for one in whole["orphans"]
            ],
        )
    else:
        click.echo("No node that was heard holds anything that the database does not know.")
    if whole["requeue"]:
        click.echo(f"Back into the queue, since their nodes do not have them: {', '.join(whole['requeue'])}")
    missing = [node["id"] for node in whole["nodes"] if not node["told"]]
    if missing:
        click.echo(f"What these nodes hold is not known: {', '.join(missing)}. Unknown is not none.")
    sys.stdout.flush()


def _summary(done: Result) -> str:
    if not done.done:
        return "There was nothing left to accept."
    text = (
        f"Accepted: {len(done.adopted)} adopted, {len(done.stopped)} to be stopped, "
        f"{len(done.plan.requeue)} back in the queue. Nodes tell their conclusions again with their next heartbeats."
    )
    if done.doubled_cards:
        names = ", ".join(f"{task} ({', '.join(uuids)})" for task, uuids in done.doubled_cards.items())
        text += f"\nCards that two live holders claim, left with the first: {names}"
    return text
