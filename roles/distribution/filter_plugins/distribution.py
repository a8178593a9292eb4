"""What a comparison of builds found, for people: which rows are wrong, tables, and how nodes differ."""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
BUILD = "heterofleet-agent-"
"""Names of builds begin so: only such files are ever removed."""
NAMES = 12
"""Hosts that one line of the table names; the others are counted."""
WIDTH = 120
"""Columns of sentences below a table."""

Row = Mapping[str, Any]


def rows_of(said: str) -> list[dict[str, Any]]:
    """The rows that ``heterofleet artifacts verify -o json`` printed; none when it printed no JSON."""
    try:
        report = json.loads(said)
        return [dict(row) for row in (*report["files"], *report["scripts"])]
    except (ValueError, KeyError, TypeError):
        return []


def wrong(rows: Sequence[Row], architectures: Sequence[str]) -> list[Row]:
    """Rows with a problem, but for architectures that nobody named and that have no build in the first place."""
    first = rows[0]["place"] if rows else ""
    built = {row["arch"] for row in rows if row["place"] == first and row.get("size") is not None}
    counted = {*architectures, *built, None}
    return [row for row in rows if row["problem"] and row.get("arch") in counted]


def files_of(manifest: Row, source: str, folder: str) -> list[dict[str, Any]]:
    """The files of a build folder ``source`` as they belong into ``folder``, the manifest last."""
    builds = [build for _, build in sorted(manifest["builds"].items())]
    files = [_file(source, folder, build["file"], build["md5"], build["sha256"]) for build in builds]
    content = (Path(source) / MANIFEST).read_bytes()
    sums = [hashlib.new(name, content, usedforsecurity=False).hexdigest() for name in ("md5", "sha256")]
    return [*files, _file(source, folder, MANIFEST, *sums)]


def tree_of(files: Sequence[Row], source: str, folder: str) -> list[dict[str, Any]]:
    """What ``heterofleet artifacts publish -o json`` says it wrote into ``source``, as it belongs into ``folder``."""
    return [_file(source, folder, file["path"], None, file["sha256"]) for file in files if file["sha256"]]


def _file(source: str, folder: str, path: str, md5: str | None, sha256: str) -> dict[str, Any]:
    return {"path": f"{folder.rstrip('/')}/{path}", "source": f"{source}/{path}", "md5": md5, "sha256": sha256}


def change(files: Sequence[Row], look: Row, mode: str) -> dict[str, Any]:
    """What to do so that ``files`` lie on a host of which files/look.py said ``look``.

    ``{"write": [file], "manifest": whether it is the last of them, "missing": [folder], "remove": [path]}``. Builds
    that neither the manifest there nor the new one names are removed, and only when something else changes.
    """
    write = [file for file in files if _differs(file, look["files"].get(file["path"]), mode)]
    wanted = {file["path"] for file in files} | set(look["named"])
    builds = [path for path in look["files"] if path.rpartition("/")[2].startswith(BUILD)]
    return {
        "write": write,
        "manifest": bool(write) and write[-1]["path"].endswith(f"/{MANIFEST}"),
        "missing": sorted(look["missing"]),
        "remove": sorted({path for path in builds if path not in wanted} | set(look["left"])) if write else [],
    }


def _differs(file: Row, there: Row | None, mode: str) -> bool:
    """md5 sees a change, where both sides have one; sha256 is trusted."""
    if there is None or there["mode"] != mode:
        return True
    if file["md5"] and there["md5"] and file["md5"] != there["md5"]:
        return True
    return bool(file["sha256"] != there["sha256"])


def places_table(rows: Sequence[Row], architectures: Sequence[str]) -> str:
    """One line for each file in each place, and below what is wrong with those that are."""
    bad = wrong(rows, architectures)
    reasons: dict[str, list[str]] = {}
    lines = []
    for row in rows:
        what = row.get("arch") or "script"
        verdict = "ok" if not row["problem"] else "WRONG" if row in bad else "not needed"
        lines.append((row["place"], what, row.get("md5") or "-", (row.get("sha256") or "-")[:12], verdict))
        if row in bad:
            reasons.setdefault(row["problem"], []).append(f"{row['place']} {what}")
    words = [f"{', '.join(wheres)}: {problem}" for problem, wheres in reasons.items()]
    return "\n".join([table(("where", "what", "md5", "sha256", "verdict"), lines), *map(_folded, words)])


def _folded(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as what is in them."""
    lines = [tuple(str(cell) for cell in row) for row in (head, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "".join(cell.ljust(width + 2) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def node_differs(found: Row | None, trouble: str | None, manifest: Row, registered: Mapping[str, Row] | None) -> str:
    """How one node differs from ``manifest``, in words; empty: it does not.

    ``found``: the agent_found of the role agent, None when nobody could look, which ``trouble`` explains.
    ``registered``: nodes by id as the control plane says; None: it was not asked.
    """
    if found is None:
        return trouble or "does not answer"
    if found.get("refused"):
        return str(found["refused"])
    if not found.get("release"):
        return "no agent is installed"
    arch = found.get("arch")
    wanted = manifest["builds"].get(arch)
    if wanted is None:
        return f"no build for its architecture {arch} ({found['release']} is there)"
    words = [*_of_the_file(found, wanted, manifest, arch), *_of_the_service(found)]
    if registered is not None:
        words += _of_the_server(found, manifest, registered)
    return "; ".join(words)


def _of_the_file(found: Row, wanted: Row, manifest: Row, arch: str) -> Iterable[str]:
    mark = "-dirty" if manifest["dirty"] else ""
    release = f"{manifest['version']}-{manifest['commit']}{mark}-{wanted['sha256'][:8]}"
    # A host under FIPS rules has no md5; then sha256 alone says it.
    sums = [name for name in ("md5", "sha256") if found.get(name)]
    unlike = [name for name in sums if found[name] != wanted[name]]
    if found["release"] != release:
        yield f"has {found['release']}, wanted {release} for {arch}"
    elif unlike:
        there = ", ".join(f"{name} {found[name]}, wanted {wanted[name]}" for name in unlike)
        yield f"the file of {release} is another one: {there}"
    elif not sums:
        yield f"the file of {release} cannot be read"
    elif found.get("whole") is False:
        yield f"the installation of {release} is not whole"


def _of_the_service(found: Row) -> Iterable[str]:
    if "enabled" in found and not found["enabled"]:
        yield "its unit is not enabled: after a restart of the machine no agent runs"
    running = found.get("running_release")
    if not running:
        yield "no agent runs"
    elif running != found["release"]:
        yield f"{running} runs, and the current release is {found['release']}"


def _of_the_server(found: Row, manifest: Row, registered: Mapping[str, Row]) -> Iterable[str]:
    node_id = found.get("node_id")
    node = registered.get(str(node_id))
    if node is None:
        yield f"the control plane knows no node {node_id}" if node_id else "it has no node id yet"
        return
    if node["state"] != "online":
        yield f"the control plane says that {node_id} is {node['state']}"
    agent = node.get("agent") or {}
    heard = f"{agent.get('version')}/{agent.get('commit')}{'-dirty' if agent.get('dirty') else ''}"
    wanted = f"{manifest['version']}/{manifest['commit']}{'-dirty' if manifest['dirty'] else ''}"
    if heard != wanted:
        yield f"the control plane hears {heard}, wanted {wanted}"


def nodes_table(differs: Mapping[str, str], hosts: Sequence[str], release: str) -> str:
    """One line for each way in which nodes differ, and one for all that do not: short for any number of nodes."""
    groups: dict[str, list[str]] = {}
    for host in hosts:
        groups.setdefault(differs.get(host, ""), []).append(host)
    equal = groups.pop("", [])
    lines = [f"{_named(names)}: {words}" for words, names in groups.items()]
    if equal:
        lines.append(f"{_named(equal)}: ok, {release}")
    return "\n".join(map(_folded, lines))


def _named(hosts: Sequence[str]) -> str:
    more = len(hosts) - NAMES
    return ", ".join(hosts[:NAMES]) + (f" and {more} more" if more > 0 else "")


def verdict(
    compared: Row,
    architectures: Sequence[str],
    heard: Row,
    hostvars: Mapping[str, Row],
    hosts: Sequence[str],
    folder: str,
    server_url: str,
) -> dict[str, Any]:
    """Everything that was looked at: ``{"good", "compared", "text", "places": [row], "nodes": {host: how it differs},
    "equal"}``; not "compared": there was nothing to compare with, and nothing is said of places and nodes.

    ``compared`` and ``heard``: what the commands printed; ``hosts``: the nodes of the play. Without a ``server_url``
    the control plane was not looked at, and then nothing is called good.
    """
    rows = rows_of(compared.get("stdout", ""))
    if not rows:
        words = compared.get("stderr") or str(compared.get("msg"))
        return {
            "good": False,
            "compared": False,
            "text": f"There is nothing to compare with.\n{words}",
            "places": [],
            "nodes": {},
            "equal": [],
        }
    bad = wrong(rows, architectures)
    manifest = json.loads((Path(folder) / MANIFEST).read_text("utf-8"))
    silent, registered = _registered(heard)
    differs = {}
    for host in hosts:
        known = hostvars[host]
        words = node_differs(known.get("agent_found"), known.get("distribution__trouble"), manifest, registered)
        if words:
            differs[host] = words
    equal = [host for host in hosts if host not in differs]
    build = f"{manifest['version']}/{manifest['commit']}{'-dirty' if manifest['dirty'] else ''}"
    if not server_url:
        silent = "\n".join(filter(None, ["No control plane was compared: set fleet_server_url.", silent]))
    good = not bad and not differs and not silent
    parts = [
        f"All is {build}."
        if good
        else f"Not all is {build}: {len(bad)} files and {len(differs)} of {len(hosts)} nodes.",
        places_table(rows, architectures),
        nodes_table(differs, hosts, build),
        silent,
    ]
    return {
        "good": good,
        "compared": True,
        "text": "\n".join(part for part in parts if part),
        "places": bad,
        "nodes": differs,
        "equal": equal,
    }


def _registered(heard: Row) -> tuple[str, Mapping[str, Row] | None]:
    """Why the control plane could not be asked (empty: it was, or nobody wanted to), and its nodes by id."""
    if heard.get("skipped"):
        return "", None
    try:
        return "", {node["id"]: node for node in json.loads(heard["stdout"])["nodes"]}
    except (ValueError, KeyError, TypeError):
        return f"The control plane does not say what it hears: {heard.get('stderr') or heard.get('msg')}", None


class FilterModule:
    """What Ansible loads."""

    def filters(self) -> dict[str, Any]:
        return {
            "distribution_rows": rows_of,
            "distribution_wrong": wrong,
            "distribution_files": files_of,
            "distribution_tree": tree_of,
            "distribution_change": change,
            "distribution_places_table": places_table,
            "distribution_verdict": verdict,
        }
