"""Who holds a node id: a pure decision over what is known of the node and what a beat says.

An instance is bound to its node id before its first 200. Another instance is refused while the holder was
heard lately; after that it takes over if it is the same machine or the holder holds no claims. The claims pass on
with the name only where nothing contradicts that it is the same machine: a fingerprint may be a template's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from runtime.protocol.heartbeat import Heartbeat
from runtime.protocol.problems import Problem


@dataclass(frozen=True)
class KnownNode:
    """What is stored of a node id. Ages in seconds by the server's clock.

    ``instance_id`` None: nobody holds it (never bound, or released). ``silent_for_s`` counts from the later of
    the holder's last beat and the server's own start: a holder that had no chance to speak is not silent.
    ``unheard_for_s`` is the age of its last beat, the server's own absence included. ``former_boots`` are boot ids
    that the instance had before ``boot_id``; ``cloned_boots`` those that were found to be a copy. ``claims`` counts
    its tasks in running or sleeping.
    """

    node_id: str
    instance_id: str | None
    fingerprint: str | None = None
    boot_id: str | None = None
    run: int = 0
    leaving: bool = False
    silent_for_s: float = 0.0
    unheard_for_s: float = 0.0
    claims: int = 0
    hostname: str | None = None
    last_seen_at: str | None = None
    former_boots: frozenset[str] = frozenset()
    cloned_boots: frozenset[str] = frozenset()


class Verdict(Enum):
    """What to do with the beat."""

    REGISTER = "register"
    """The node id is new, or nobody holds it: bind the instance."""
    REPLACE = "replace"
    """Another instance takes over."""
    CONTINUE = "continue"
    """The holder itself."""
    REBOOTED = "rebooted"
    """The holder itself, with a boot id not seen before."""
    UNMASK = "unmask"
    """The holder itself; the boot id that came in between belongs to a copy."""


@dataclass(frozen=True)
class Decision:
    verdict: Verdict
    why: str
    unbind_node: str | None = None
    """A node id that this instance held until now and gives up."""
    succeeds: bool = False
    """The former holder's claims are this instance's now: it is the same machine."""


UPTIME_SLACK_S = 30.0
"""How far an uptime and the age of a beat may disagree before they contradict each other."""


def decide(node: KnownNode | None, elsewhere: KnownNode | None, beat: Heartbeat, *, lost_after_s: float) -> Decision:
    """What this beat may do. ``elsewhere`` is another node id that the beat's instance is bound to.

    Raises Problem instance_cloned, stale_run, node_id_in_use or instance_mismatch.
    """
    if node is not None and node.instance_id == beat.instance_id:
        return _own(node, beat)
    unbind = None if elsewhere is None else _leave_other(elsewhere, beat, lost_after_s)
    if node is None:
        return Decision(Verdict.REGISTER, "first beat of this node", unbind)
    if node.instance_id is None:
        return Decision(Verdict.REGISTER, "nobody held the node id", unbind)
    if not node.leaving and node.silent_for_s < lost_after_s:
        raise _in_use(
            node,
            f"it was heard {node.silent_for_s:.0f} s ago",
            f"Stop that agent, or wait until it was silent for {lost_after_s:.0f} s, or give this machine another "
            "node id.",
        )
    if node.fingerprint is not None and node.fingerprint == beat.fingerprint:
        if _ran_beside(node, beat):
            why = "the machine's fingerprint is the same, but it was up while the former holder still spoke"
            return Decision(Verdict.REPLACE, why, unbind)
        return Decision(Verdict.REPLACE, "the same machine with a new instance", unbind, succeeds=True)
    if node.claims == 0:
        return Decision(Verdict.REPLACE, "the former holder held no claims", unbind)
    raise _in_use(
        node,
        f"it still holds {node.claims} claim(s) and is another machine",
        f"If it will not come back: heterofleet nodes release {node.node_id}.",
    )


def _ran_beside(node: KnownNode, beat: Heartbeat) -> bool:
    """Whether the beat's machine was up, as another boot, when the holder was heard last: then it is a copy of it."""
    uptime = beat.host.uptime_s if beat.host is not None else None
    if uptime is None or beat.boot_id is None or beat.boot_id == node.boot_id:
        return False
    return uptime > max(node.silent_for_s, node.unheard_for_s) + UPTIME_SLACK_S


def _own(node: KnownNode, beat: Heartbeat) -> Decision:
    boot = beat.boot_id
    if boot is not None and boot in node.cloned_boots:
        raise _cloned(node)
    if boot is not None and node.boot_id is not None and boot != node.boot_id:
        # A boot id never returns after a reboot. One that does was there all the time, and the one that came in
        # between runs from a copy of its state folder. The copy's run may be the higher one, so this comes
        # before the run is looked at.
        if boot in node.former_boots:
            return Decision(Verdict.UNMASK, "two boots alternate under one instance")
        if beat.run >= node.run:
            return Decision(Verdict.REBOOTED, "the machine was started again")
    if beat.run < node.run:
        raise Problem(
            "stale_run",
            f"Run {beat.run} of node {node.node_id} is over: run {node.run} is known. Go on with {node.run + 1}.",
            known_run=node.run,
        )
    return Decision(Verdict.CONTINUE, "the holder")


def _leave_other(elsewhere: KnownNode, beat: Heartbeat, lost_after_s: float) -> str:
    if not elsewhere.leaving and elsewhere.silent_for_s < lost_after_s and elsewhere.boot_id != beat.boot_id:
        raise Problem(
            "instance_cloned",
            f"Instance {beat.instance_id} is alive as node {elsewhere.node_id} on another machine; this copy makes "
            "an instance of its own.",
            node_id=elsewhere.node_id,
        )
    if elsewhere.claims:
        raise Problem(
            "instance_mismatch",
            f"Instance {beat.instance_id} belongs to node {elsewhere.node_id}, which holds {elsewhere.claims} "
            "claim(s). Give the agent that node id back until they have ended; if they are given up: "
            f"heterofleet nodes release {elsewhere.node_id}.",
            node_id=elsewhere.node_id,
        )
    return elsewhere.node_id


def _cloned(node: KnownNode) -> Problem:
    return Problem(
        "instance_cloned",
        f"Instance {node.instance_id} of node {node.node_id} runs on two machines; this one came later and makes "
        "an instance of its own.",
        node_id=node.node_id,
    )


def _in_use(node: KnownNode, why: str, advice: str) -> Problem:
    hostname = node.hostname or "an unnamed host"
    return Problem(
        "node_id_in_use",
        f"Node id {node.node_id} is held by {hostname}: {why}. {advice}",
        holder={"hostname": node.hostname, "last_seen_at": node.last_seen_at},
    )
