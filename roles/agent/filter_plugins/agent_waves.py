"""Decisions of a roll-out: whether the control plane confirms a node, whether the next wave begins, what to tell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WELL = ("changed", "unchanged")
"""Results of hosts that are as wanted."""
SHOWN = 5
"""So many names in a sentence."""

Facts = Mapping[str, Any]


def before(node: Facts) -> dict[str, Any]:
    """What must not get worse, of a node as the control plane shows it; of one that it does not know: nothing."""
    return {
        "run": node.get("run") or 0,
        "instance": node.get("instance_id") or "",
        "docker": bool((node.get("docker") or {}).get("available")),
        "cards": _well_cards(node),
        "warnings": [one["code"] for one in node.get("warnings") or ()],
    }


def missing(seen: Facts, was: Facts, release: str) -> list[str]:
    """Why the control plane does not confirm that the node runs ``release`` and is as well as it was; [] when it does.

    ``seen``: its answer to the question for the node. An agent that was started after the change has a higher run, or
    is another instance: no clock is compared.
    """
    node = seen.get("json") or {}
    if seen.get("status") != 200:
        return [f"it answers {node.get('detail') or seen.get('msg') or 'nothing'}"]
    found = []
    runs, wanted = _heard(node), _build(release)
    if node.get("state") != "online":
        found.append(f"the node is {node.get('state')}")
    if runs != wanted:
        found.append(f"it hears {runs}, wanted {wanted}")
    if was.get("instance") and node.get("instance_id") == was["instance"] and (node.get("run") or 0) <= was["run"]:
        found.append("it has heard nothing of an agent that was started after the change")
    sick = [card for card in was.get("cards") or () if card not in _well_cards(node)]
    if sick:
        found.append(f"cards that were well are not: {_some(sick)}")
    if was.get("docker") and not (node.get("docker") or {}).get("available"):
        found.append("Docker was available and is not")
    if was.get("run"):
        found += [one["detail"] for one in node.get("warnings") or () if one["code"] not in was["warnings"]]
    return found


def put_back(unconfirmed: Facts, outcome: Facts) -> dict[str, Any]:
    """The last word on a host whose change was not confirmed. ``outcome``: what the way back said; where there was
    none to go, still that of the change itself.

    A way back that failed names the release that it was to reach, too: only its result tells.
    """
    old, new = unconfirmed["from"], unconfirmed["to"]
    reason = unconfirmed["reason"]
    if not old:
        reason += "; no agent ran before, so there is nothing to put back"
    elif old == new:
        reason += "; it ran this release before, so there is none to put back: its settings or its machine may be why"
    back = old not in ("", new) and outcome.get("to") == old and outcome.get("result") in WELL
    return {"result": "restored" if back else "failed", "from": old, "to": new, "reason": reason}


def begin_wave(
    facts: Sequence[Facts],
    batch: Iterable[str],
    nodes: Sequence[Facts] | None,
    stop: bool,
    refused: str = "skip",
    in_vain: bool = False,
) -> dict[str, Any]:
    """The number of the wave that is to begin, why it does not ("" when it does), and hosts whose confirmation does not
    hold any more: name -> why.

    ``facts``: of all hosts of the play, see ``facts_of``. ``nodes``: all of the control plane's, None when not asked.
    ``refused``: whether a host that refused itself stops the others ("stop") or not ("skip"). ``in_vain``: the control
    plane was asked for them, and did not say.
    """
    mine = set(batch)
    others = [one for one in facts if one["name"] not in mine and one["wave"]]
    gone = fallen(others, nodes)
    stops = ("failed", "restored", *(["refused"] if refused == "stop" else []))
    bad = [one["name"] for one in others if one["name"] in gone or one["outcome"].get("result", "failed") in stops]
    reason = f"an earlier wave did not come back well: {_some(bad)}" if bad else ""
    if in_vain and others:
        reason = reason or "the control plane does not say how the waves before this one are"
    return {
        "number": max((one["wave"]["number"] for one in others), default=0) + 1,
        "stop": "a stop was asked for" if stop else reason,
        "gone": gone,
    }


def fallen(facts: Iterable[Facts], nodes: Sequence[Facts] | None) -> dict[str, str]:
    """Hosts that were confirmed, or found as wanted, and are not heard so now: name -> why.

    One that was found as wanted may be left of a run that was cut before the control plane had its say: the node's own
    word is not enough.
    """
    if nodes is None:
        return {}
    known = {node["id"]: node for node in nodes}
    found = {}
    for one in facts:
        said = one["confirmed"]
        if not said:
            continue
        node = known.get(said["node_id"], {})
        was = "was confirmed" if "run" in said else "is as wanted by its own word"
        if node.get("state") != "online":
            found[one["name"]] = f"{was}, and is {node.get('state', 'not known')} to the control plane now"
        elif "run" not in said:
            if _heard(node) != _build(said["release"]):
                found[one["name"]] = f"{was}, and the control plane hears {_heard(node)}"
        elif node.get("run") != said["run"]:
            found[one["name"]] = "was confirmed, and its agent has been started again since"
    return found


def facts_of(names: Sequence[str], hosts: Sequence[Facts]) -> list[dict[str, Any]]:
    """What the role keeps of each host, by plain names."""
    return [
        {
            "name": name,
            "wave": host.get("agent__wave") or {},
            "outcome": host.get("agent_outcome") or {},
            "confirmed": host.get("agent__confirmed") or _by_its_own_word(host),
            "uncordoned": host.get("agent__uncordoned") or {},
            "cordon": host.get("agent__cordon") or {},
        }
        for name, host in zip(names, hosts)
    ]


def _by_its_own_word(host: Facts) -> dict[str, Any]:
    """Of a host that was left as it is: which node and release that is. An agent that was removed has no release."""
    outcome, node_id = host.get("agent_outcome") or {}, (host.get("agent_found") or {}).get("node_id")
    if outcome.get("result") != "unchanged" or not outcome.get("to") or not node_id:
        return {}
    return {"node_id": node_id, "release": outcome["to"]}


def summary(facts: Sequence[Facts], nodes: Sequence[Facts] | None, run: str, in_vain: bool = False) -> dict[str, Any]:
    """``text``: a table for people; ``bad``: names of hosts that are not as wanted; ``rows`` the same as data."""
    gone: dict[str, str] = fallen(facts, nodes)
    for one in facts:
        gone.update(one["wave"].get("gone") or {})
    rows = [_row(one, gone.get(one["name"], "")) for one in facts]
    results = [row["result"] for row in rows]
    counts = ", ".join(f"{results.count(result)} {result}" for result in dict.fromkeys(results))
    lines = [f"{run}: {counts or 'no host'}", *_table(rows), *_waves(rows), *_skew(nodes or ()), *_in_full(rows)]
    if in_vain:
        lines.append("the control plane does not say how the hosts are now; this is how they were when each was done")
    bad = [row["host"] for row in rows if row["result"] not in WELL]
    return {"text": "\n".join(lines), "bad": bad, "rows": rows}


def _row(one: Facts, gone: str) -> dict[str, Any]:
    said = one["outcome"]
    if gone:
        result, reason = "failed", gone
    elif said:
        result, reason = said.get("result", "failed"), said.get("reason") or ""
    elif one["wave"] and not one["wave"]["stop"]:
        result, reason = "failed", "ended in the middle of its change (unreachable?); the next run goes on from there"
    else:
        result, reason = "skipped", "its turn did not come: unreachable, or refused before"
    cordon, lifted = one["cordon"], one["uncordoned"].get("status")
    if cordon and lifted not in (200, 404, 409):
        reason = f"{reason}; stays cordoned ({cordon['reason']}) until a run finds it well".lstrip("; ")
    return {
        "host": one["name"],
        "result": result,
        "from": said.get("from") or "",
        "to": said.get("to") or "",
        "reason": str(reason).strip(),
        "wave": one["wave"].get("number", 0),
    }


def _table(rows: Sequence[Facts]) -> list[str]:
    columns = ("host", "result", "from", "to", "reason")
    shown = [{column: column.upper() for column in columns}]
    shown += [{**row, "reason": row["reason"].partition("\n")[0]} for row in rows]
    widths = {column: max(len(row[column]) for row in shown) for column in columns}
    return ["  ".join(row[column].ljust(widths[column]) for column in columns).rstrip() for row in shown]


def _in_full(rows: Sequence[Facts]) -> list[str]:
    """Reasons of more than one line: the end of a journal."""
    lines = []
    for row in rows:
        if "\n" in row["reason"]:
            lines += [f"{row['host']}:", *(f"    {line}" for line in row["reason"].split("\n"))]
    return lines


def _waves(rows: Sequence[Facts]) -> list[str]:
    waves = sorted({row["wave"] for row in rows if row["wave"]})
    open_ones = [wave for wave in waves if any(row["wave"] == wave and row["result"] not in WELL for row in rows)]
    if len(waves) < 2:
        return []
    done = f"waves: {len(waves) - len(open_ones)} of {len(waves)} done"
    return [
        f"{done}; left: {', '.join(map(str, open_ones))} (run it again when what stopped it is put right)"
        if open_ones
        else done
    ]


def _skew(nodes: Iterable[Facts]) -> list[str]:
    """How many nodes of the whole control plane run which build, while there is more than one."""
    builds = [_heard(node) for node in nodes if node.get("agent")]
    if len(set(builds)) < 2:
        return []
    counts = ", ".join(
        f"{builds.count(build)} {build}" for build in sorted(set(builds), key=builds.count, reverse=True)
    )
    return [f"the control plane's nodes run different builds: {counts}"]


def _well_cards(node: Facts) -> list[str]:
    return [card["uuid"] for card in node.get("gpus") or () if card.get("health") == "ok"]


def _heard(node: Facts) -> str:
    """The build that the control plane hears from a node, as a release names it."""
    agent = node.get("agent") or {}
    return f"{agent.get('version')}-{agent.get('commit')}{'-dirty' if agent.get('dirty') else ''}"


def _build(release: str) -> str:
    """A release folder's name without the checksum: ``<version>-<commit>[-dirty]``."""
    return re.sub(r"-[0-9a-f]{8}$", "", release)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def both_ways(found: Iterable[Facts]) -> list[str]:
    """Two releases that hosts would change in both directions, going each to the one before; [] when there are none.

    ``found``: what a look found on each host. Other architectures have other checksums, so builds are compared.
    """
    moves = {tuple(_build(one.get(key) or "") for key in ("release", "previous")) for one in found}
    return next((list(move) for move in sorted(moves) if all(move) and move[0] != move[1] and move[::-1] in moves), [])


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, Any]:
        return {
            "agent_before": before,
            "agent_both_ways": both_ways,
            "agent_missing": missing,
            "agent_put_back": put_back,
            "agent_begin_wave": begin_wave,
            "agent_facts_of": facts_of,
            "agent_fallen": fallen,
            "agent_summary": summary,
        }
