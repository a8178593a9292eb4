#!/usr/bin/env python3
"""Ansible's dynamic inventory: the nodes that a control plane knows.

    ansible-inventory -i inventory/heterofleet.py --graph

Address and token as for `heterofleet`: HETEROFLEET_SERVER_URL and HETEROFLEET_TOKEN, or
~/.config/heterofleet/config.yaml; a token of the role viewer is enough. All nodes are in the group `nodes`, and by
what the control plane knows of them in state_STATE, schedulable or cordoned, draining, arch_ARCH, version_VERSION,
dirty, label_NAME_VALUE, and by their cards vendor_VENDOR, model_MODEL, class_CLASS. What nobody knows is in
arch_unknown, version_unknown and cards_unknown; a node that has no cards in cards_none. Other characters than
letters, digits and _ become _ in names of groups.

Errors are one sentence on standard error; exit codes as those of `heterofleet`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, Optional

PROJECT = Path(__file__).resolve().parents[1]
OWN_PYTHON = PROJECT / ".venv" / "bin" / "python"
sys.path.insert(0, str(PROJECT))

UNKNOWN = "unknown"
ADDRESS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:%_-]{0,254}")
"""No option of ssh (that begins with -), and no template of Ansible's."""
NODE_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

Node = Mapping[str, Any]


def inventory(nodes: Iterable[Node]) -> tuple[dict[str, Any], list[str]]:
    """What --list prints, and warnings. Pure."""
    members: dict[tuple[str, ...], list[str]] = defaultdict(list)
    hostvars: dict[str, dict[str, Any]] = {}
    warnings: list[str] = []
    for node in nodes:
        name = str(node.get("id"))
        if not NODE_ID.fullmatch(name):
            warnings.append(f"left out a node whose id is none: {name!r}")
            continue
        hostvars[name] = variables(node)
        for group in groups(node):
            members[group].append(name)
    named = group_names(members, warnings)
    whole: dict[str, Any] = {named[words]: {"hosts": sorted(hosts)} for words, hosts in members.items()}
    whole["nodes"] = {"hosts": sorted(hostvars)}
    return {"_meta": {"hostvars": hostvars}, **dict(sorted(whole.items()))}, warnings


def groups(node: Node) -> set[tuple[str, ...]]:
    """The groups that this node is in, each as its words."""
    build = node.get("agent") or {}
    found: set[tuple[str, ...]] = {
        ("state", str(node.get("state") or UNKNOWN)),
        ("schedulable",) if node.get("schedulable") else ("cordoned",),
        ("arch", architecture(node)),
        ("version", str(build.get("version") or UNKNOWN)),
    }
    found |= {("draining",)} if node.get("draining") else set()
    found |= {("dirty",)} if build.get("dirty") else set()
    found |= {("label", str(name), str(value)) for name, value in (node.get("labels") or {}).items()}
    cards = whole_cards(node)
    if not cards:
        found.add(("cards", UNKNOWN if cards is None else "none"))
    for card in cards or ():
        found |= {(what, str(card[what])) for what in ("vendor", "model", "class") if card.get(what)}
    return found


def group_names(members: Iterable[tuple[str, ...]], warnings: list[str]) -> dict[tuple[str, ...], str]:
    """Words -> a name that Ansible takes. Where two would have one name, none has it: a play must never meet hosts
    that nobody meant."""
    same: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for words in members:
        same[re.sub(r"[^A-Za-z0-9_]", "_", "_".join(words))].append(words)
    found = {}
    for name, sources in same.items():
        for words in sources:
            alone = len(sources) == 1
            found[words] = name if alone else f"{name}_{hashlib.sha256(repr(words).encode()).hexdigest()[:6]}"
            if not alone:
                shown = " ".join([words[0], "=".join(words[1:])])
                warnings.append(f"{shown!r} is the group {found[words]}: another would be {name}, too")
    return found


def variables(node: Node) -> dict[str, Any]:
    """Variables of a host. The texts come from agents: Ansible must not take any of them for a template."""
    build, host = node.get("agent") or {}, node.get("host") or {}
    cards = whole_cards(node)
    counted = None if cards is None else Counter(str(card.get("class") or UNKNOWN) for card in cards)
    found = {
        "state": node.get("state"),
        "schedulable": node.get("schedulable"),
        "draining": node.get("draining"),
        "cordon": node.get("cordon"),
        "hostname": node.get("hostname"),
        "last_seen_at": node.get("last_seen_at"),
        "arch": architecture(node) if build.get("arch") else None,
        "version": build.get("version"),
        "commit": build.get("commit"),
        "dirty": build.get("dirty"),
        "os": host.get("os"),
        "docker": (node.get("docker") or {}).get("version"),
        "labels": node.get("labels") or {},
        "cards": counted,
    }
    variables = {f"heterofleet_{name}": plain(value) for name, value in found.items()}
    address = host.get("mgmt_addr")
    if isinstance(address, str) and ADDRESS.fullmatch(address):
        variables["ansible_host"] = address
    return variables


def architecture(node: Node) -> str:
    said = str((node.get("agent") or {}).get("arch") or UNKNOWN)
    return ARCHITECTURES.get(said, said)


def whole_cards(node: Node) -> Optional[list[Mapping[str, Any]]]:
    """Cards without their slices; None: not known."""
    cards = node.get("gpus")
    return None if cards is None else [card for card in cards if not card.get("parent_uuid")]


def plain(value: Any) -> Any:
    """The value with every text that could be a template marked as none, in the way that Ansible reads.

    A name of Ansible's own marks makes the map another kind of thing to it, or the whole inventory unreadable: one node
    must not do that to all, so such a name is left out.
    """
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items() if not str(name).startswith("__ansible_")}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return {"__ansible_unsafe": value} if isinstance(value, str) and re.search(r"\{[{%#]", value) else value


def end(sentence: object, code: int) -> NoReturn:
    print(f"heterofleet: {'; '.join(str(sentence).split(chr(10)))}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


def use_own_python(missing: Optional[str]) -> NoReturn:
    """Ansible starts this file by its first line, which may be another Python than the one that has our package."""
    if OWN_PYTHON.exists() and Path(sys.prefix) != OWN_PYTHON.parents[1]:
        os.execv(OWN_PYTHON, [str(OWN_PYTHON), *sys.argv])  # noqa: S606 (the same file, in the project's own Python)
    end(
        f"{sys.executable} has no module {missing}; install heterofleet[cli] for it, or put the folder of a Python "
        "that has it first on PATH",
        1,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Nodes of a HeteroFleet control plane as an inventory for Ansible.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="all nodes, groups and variables")
    what.add_argument("--host", metavar="NODE", help="the variables of one node")
    asked = parser.parse_args()
    try:
        from runtime.cli.client import Client, part
        from runtime.cli.errors import MASKER, CliError
        from runtime.cli.settings import connection, read_settings
        from runtime.protocol.routes import NODES
    except ModuleNotFoundError as error:
        use_own_python(error.name)
    try:
        loaded, warnings = read_settings({}, os.environ)
        to, more = connection(loaded.settings, loaded.origins)
        client = Client(to)
        if asked.host:
            said = variables(client.get(f"{NODES}/{part(asked.host)}").body)
        else:
            said, odd = inventory(client.get(NODES).body.get("nodes") or [])
            more += odd
    except CliError as error:
        end(MASKER.text(error.message), int(error.exit_code))
    for warning in [*warnings, *more]:
        print(f"heterofleet: warning: {MASKER.text(warning)}", file=sys.stderr)  # noqa: T201
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()
