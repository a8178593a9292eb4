"""``heterofleet nodes``."""

from __future__ import annotations

from collections import Counter
from typing import Any, Optional

import click

from runtime.cli import show
from runtime.cli.client import part
from runtime.cli.context import Invocation, confirm, remote
from runtime.cli.output import Column, emit, print_fields, print_table, say
from runtime.cli.values import Duration
from runtime.cli.why import print_why
from runtime.protocol.routes import NODES

COLUMNS = (
    Column("NODE", lambda n: show.text(n.get("id")), keep=True),
    Column("STATE", lambda n: _state(n), keep=True),
    Column("CARDS", lambda n: _cards(n), keep=True, right=True),
    Column("SLOTS", lambda n: _slots(n), keep=True, right=True),
    Column("SEEN", lambda n: show.age(n.get("last_seen_at")), keep=True, right=True),
    Column("AGENT", lambda n: _build(n)),
)

CARD_COLUMNS = (
    Column("UUID", lambda g: show.text(g.get("uuid")), keep=True),
    Column("MODEL", lambda g: show.text(g.get("model"))),
    Column("MEM", lambda g: show.mib(g.get("memory_total_mib")), keep=True, right=True),
    Column("TEMP", lambda g: show.text(g.get("temperature_c")), keep=True, right=True),
    Column("HEALTH", lambda g: show.text(g.get("health")), keep=True),
    Column("MODE", lambda g: show.text(g.get("mode")), keep=True),
    Column("TASK", lambda g: show.text(g.get("allocated_to"))),
)


@click.group()
def nodes() -> None:
    """Machines of the fleet."""


@nodes.command("list")
@remote
def list_nodes(call: Invocation) -> None:
    """All nodes."""
    emit(
        call.client.get(NODES),
        call.output,
        lambda body: print_table(COLUMNS, body.get("nodes") or [], "no node is registered"),
    )


@nodes.command("show")
@click.argument("node_id", metavar="NODE")
@remote
def show_node(call: Invocation, node_id: str) -> None:
    """One node: state, build, engine, cards."""
    emit(call.client.get(f"{NODES}/{part(node_id)}"), call.output, _details)


@nodes.command()
@click.argument("node_id", metavar="NODE")
@remote
def why(call: Invocation, node_id: str) -> None:
    """Why NODE takes new work or not, and what its cards lack."""
    emit(call.client.get(f"{NODES}/{part(node_id)}/why"), call.output, print_why)


@nodes.command()
@click.argument("node_id", metavar="NODE")
@click.option("--reason", required=True, help="Why, for whoever looks next.")
@remote
def cordon(call: Invocation, node_id: str, reason: str) -> None:
    """Give NODE no new work. What runs there goes on."""
    answer = call.client.post(f"{NODES}/{part(node_id)}/cordon", {"reason": reason})
    emit(answer, call.output, lambda _: say(f"node {node_id} is cordoned: {reason}"))


@nodes.command()
@click.argument("node_id", metavar="NODE")
@click.option("--reason", required=True, help="Why, for whoever looks next.")
@click.option("--deadline", type=Duration(), default="1h", show_default=True, help="What runs then is dealt with.")
@click.option(
    "--then",
    type=click.Choice(["leave", "stop", "reschedule"]),
    default="leave",
    show_default=True,
    help="What happens to it.",
)
@remote
def drain(call: Invocation, node_id: str, reason: str, deadline: float, then: str) -> None:
    """Give NODE no new work, and deal with what still runs at the deadline."""
    body = {"reason": reason, "deadline_s": deadline, "then": then}
    answer = call.client.post(f"{NODES}/{part(node_id)}/drain", body)
    emit(answer, call.output, lambda _: say(f"node {node_id} is drained within {deadline:g} s, then: {then}"))


@nodes.command()
@click.argument("node_id", metavar="NODE")
@remote
def uncordon(call: Invocation, node_id: str) -> None:
    """Let NODE take work again."""
    answer = call.client.post(f"{NODES}/{part(node_id)}/uncordon")
    emit(answer, call.output, lambda _: say(f"node {node_id} may take work again"))


@nodes.command()
@click.argument("node_id", metavar="NODE")
@click.option("--yes", is_flag=True, help="Do not ask.")
@remote
def release(call: Invocation, node_id: str, yes: bool) -> None:
    """Let another machine take the name NODE."""
    confirm(f"Release the name {node_id}, so that another machine may take it?", yes)
    answer = call.client.post(f"{NODES}/{part(node_id)}/release")
    emit(answer, call.output, lambda _: say(f"node {node_id} is released: the next instance that asks may take it"))


@nodes.command()
@click.argument("node_id", metavar="NODE")
@click.option("--yes", is_flag=True, help="Do not ask.")
@remote
def delete(call: Invocation, node_id: str, yes: bool) -> None:
    """Forget NODE. Its agent comes back as a new node if it still runs: uninstall it first."""
    confirm(f"Delete the node {node_id}?", yes)
    emit(call.client.delete(f"{NODES}/{part(node_id)}"), call.output, lambda _: None)
    say(f"node {node_id} is deleted")


def _state(node: Any) -> str:
    marks = [
        mark
        for mark, on in (
            ("cordoned", node.get("cordon")),
            ("draining", node.get("draining")),
            ("not schedulable", node.get("schedulable") is False and not node.get("cordon")),
        )
        if on
    ]
    # Of a node that is not heard its state says enough: nobody knows how its cards are.
    found = Counter(gpu.get("health") for gpu in node.get("gpus") or () if node.get("state") == "online")
    marks += [f"{count} card{'s' if count > 1 else ''} {health}" for health, count in found.items() if _sick(health)]
    return ", ".join([show.text(node.get("state")), *marks])


def _sick(health: Optional[str]) -> bool:
    return health not in (None, "ok")


def _cards(node: Any) -> str:
    gpus = node.get("gpus")
    if gpus is None:
        return show.UNKNOWN
    return f"{sum(1 for gpu in gpus if gpu.get('allocated_to'))}/{len(gpus)}"


def _slots(node: Any) -> str:
    slots = node.get("slots") or {}
    return show.share(slots.get("used"), slots.get("total"))


def _build(node: Any) -> str:
    agent = node.get("agent")
    if not agent:
        return show.UNKNOWN
    return f"{agent.get('version')}/{agent.get('commit')}" + (" dirty" if agent.get("dirty") else "")


def _details(node: Any) -> None:
    host, docker, cordoned = node.get("host") or {}, node.get("docker"), node.get("cordon")
    print_fields(
        [
            ("node", node.get("id")),
            ("state", _state(node)),
            ("cordon", f"{cordoned['reason']} (by {cordoned['owner']}, {cordoned['since']})" if cordoned else None),
            ("last seen", show.age(node.get("last_seen_at")) + " ago" if node.get("last_seen_at") else "never"),
            ("instance", show.text(node.get("instance_id"))),
            ("run", show.text(node.get("run"))),
            ("agent", _build(node)),
            ("hostname", show.text(node.get("hostname"))),
            ("system", f"{show.text(host.get('os'))}, kernel {show.text(host.get('kernel'))}"),
            ("cores", show.text(host.get("cpu_cores"))),
            ("memory", show.share(host.get("memory_used_mib"), host.get("memory_total_mib"), show.mib)),
            ("address", show.text(host.get("mgmt_addr"))),
            ("engine", _engine(docker)),
            ("slots", _slots(node)),
            ("labels", show.text(node.get("labels"))),
            *(("adapter", _port(one)) for one in node.get("hcas") or ()),
            *([] if node.get("hcas") else [("adapters", "none" if node.get("hcas") == [] else show.UNKNOWN)]),
            ("clock skew", f"{node['clock_skew_s']:g} s" if node.get("clock_skew_s") is not None else show.UNKNOWN),
            *(("warning", f"{w.get('code')}: {w.get('detail')}") for w in node.get("warnings") or []),
        ]
    )
    if node.get("gpus"):
        click.echo()
        print_table(CARD_COLUMNS, node["gpus"], "no cards")


def _port(hca: Any) -> str:
    """An adapter's port. One that is not active carries nothing, whatever its rate."""
    rate = f"{hca['rate_gbps']:g} Gb/s" if hca.get("rate_gbps") is not None else "rate not known"
    facts = [
        show.text(hca.get("link_layer")),
        show.text(hca.get("state")),
        rate,
        f"fabric {hca['fabric']}" if hca.get("fabric") else "no fabric named",
    ]
    number = "" if hca.get("port") is None else f" port {hca['port']}"
    return f"{show.text(hca.get('name'))}{number}: {', '.join(facts)}"


def _engine(docker: Any) -> str:
    if not docker:
        return "not known"
    if not docker.get("available"):
        return f"not available: {show.text(docker.get('error'))}"
    return f"Docker {show.text(docker.get('version'))}, runtimes {show.text(docker.get('runtimes'))}"
