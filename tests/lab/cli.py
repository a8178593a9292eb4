"""The command line: ``python -m tests.lab COMMAND``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, Optional

from tests.lab import host, node_image, places, ssh
from tests.lab.lab import DEFAULT_CARDS, CardsChoice, Lab
from tests.lab.node import Node
from tests.lab.process import LabError, Progress

_NODE_ACTIONS = {
    "cut": ("take the node off the network", lambda node, args: node.cut_network(args.how)),
    "heal": ("give it back its network", lambda node, args: node.heal_network()),
    "power-cut": ("end everything on it at once", lambda node, args: node.power_cut()),
    "power-on": ("start it and wait until it has booted", lambda node, args: node.power_on()),
    "stop-docker": ("stop its engine", lambda node, args: node.stop_engine()),
    "start-docker": ("start its engine", lambda node, args: node.start_engine()),
    "restart-docker": ("restart its engine", lambda node, args: node.restart_engine()),
    "freeze-docker": ("its engine takes calls and never answers", lambda node, args: node.freeze_engine()),
    "thaw-docker": ("its engine goes on", lambda node, args: node.thaw_engine()),
}


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Exit codes: 0 done, 1 failed, 2 usage; ``node NODE exec`` ends with the program's own."""
    args = _parser().parse_args(argv)
    try:
        return int(args.action(args) or 0)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description="A fleet on one machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="bring up what is missing")
    up.add_argument("--nodes", type=int, default=3, metavar="N")
    up.add_argument(
        "--cards",
        action="append",
        default=[],
        metavar="N|N,N,..|NODE=N",
        help=f"cards of new nodes: for all, in order, or of one node; default {DEFAULT_CARDS}",
    )
    up.set_defaults(action=_up)
    prepare = commands.add_parser("prepare", help="install the packages that the lab and the tests need")
    prepare.set_defaults(action=lambda args: host.ensure(Progress(), for_tests=True))
    down = commands.add_parser("down", help="leave nothing but the cache folder")
    down.set_defaults(action=lambda args: Lab().down())
    purge = commands.add_parser("purge", help="leave nothing at all: cache and images go, too")
    purge.set_defaults(action=lambda args: Lab().purge())
    status = commands.add_parser("status", help="what is there now; exit code 1 when the lab is not up")
    status.add_argument("-o", "--output", choices=("table", "json"), default="table")
    status.set_defaults(action=_status)
    load = commands.add_parser("load-image", help="put the task image into the nodes' engines again")
    load.set_defaults(action=lambda args: Lab.attach().load_image())
    logs = commands.add_parser("logs", help="a node's journal, or `registry`, `dockerd`")
    logs.add_argument("of", metavar="NODE|registry|dockerd")
    logs.add_argument("--unit", metavar="UNIT")
    logs.set_defaults(action=_logs)

    node = commands.add_parser("node", help="do something to one node")
    actions = node.add_subparsers(required=True, metavar="ACTION")
    for name, (text, do) in _NODE_ACTIONS.items():
        one = actions.add_parser(name, help=text)
        one.add_argument("node", metavar="NODE", help="hf-node-2, or 2")
        if name == "cut":
            one.add_argument(
                "--how",
                choices=("disconnect", "drop"),
                default="disconnect",
                help="take the link away, or leave it up and swallow every packet",
            )
        one.set_defaults(action=lambda args, do=do: do(Lab.attach().node(args.node), args))
    make = actions.add_parser("make", help="make it (anew) with another Debian release")
    make.add_argument("node", type=_number, metavar="NODE")
    make.add_argument("--release", choices=tuple(node_image.RELEASES), required=True)
    make.set_defaults(action=lambda args: Lab.attach().make_node(args.node, args.release) and None)
    remove = actions.add_parser("remove", help="take it away with all that it holds")
    remove.add_argument("node", type=_number, metavar="NODE")
    remove.set_defaults(action=lambda args: Lab.attach().remove_node(args.node))
    execute = actions.add_parser("exec", help="run a program on it")
    execute.add_argument("node", metavar="NODE")
    execute.add_argument("words", nargs=argparse.REMAINDER, metavar="[--] PROGRAM [ARGUMENT...]")
    execute.set_defaults(action=_exec)
    shell = actions.add_parser("shell", help="a root shell on it, over SSH")
    shell.add_argument("node", metavar="NODE")
    shell.set_defaults(action=_shell)
    return parser


def _number(said: str) -> int:
    return int(said.removeprefix(places.NODE_PREFIX))


def _up(args: argparse.Namespace) -> None:
    Lab.up(nodes=args.nodes, cards=_cards(args.cards))
    print(f"up: {args.nodes} node(s), registry {places.REGISTRY}; cache {places.cache()}", file=sys.stderr)


def _cards(words: Sequence[str]) -> CardsChoice:
    try:
        if len(words) == 1 and "=" not in words[0]:
            counts = [int(count) for count in words[0].split(",")]
            return counts[0] if len(counts) == 1 else counts
        named = (word.split("=", 1) for word in words)
        return {Node(int(name.removeprefix(places.NODE_PREFIX))).name: int(n) for name, n in named} or None
    except ValueError:
        raise LabError(f"--cards {' --cards '.join(words)}: wanted 2, or 2,2,0, or hf-node-3=0") from None


def _status(args: argparse.Namespace) -> int:
    status = Lab().status()
    if args.output == "json":
        print(json.dumps(status, indent=2))
    else:
        _print_table(status)
    return 0 if status["state"] == "up" else 1


def _print_table(status: dict[str, Any]) -> None:
    owner = "started by the lab" if status["engine"]["started_by_lab"] else "not the lab's"
    registry = status["registry"]
    print(f"lab       {status['state']}")
    print(f"engine    {status['engine']['version'] or 'none'} ({owner})")
    print(f"network   {places.NETWORK} {places.SUBNET}, this machine is {places.HOST_ADDRESS}")
    print(f"registry  {places.REGISTRY} {'up' if registry['running'] else 'down'}, user {registry['user']}, ", end="")
    print(f"password in {registry['password_file']}")
    print(f"cache     {status['cache']}")
    for node in status["nodes"]:
        print(
            f"{node['name']:<9} {node['address']:<15} {node['systemd']:<10} network {node['network']:<10} "
            f"{node['cards']} card(s)"
        )


def _logs(args: argparse.Namespace) -> int:
    if args.of in ("registry", "dockerd"):
        print((places.logs() / f"{args.of}.log").read_text(errors="replace"), end="")
        return 0
    words = ["journalctl", "--no-pager", *(["--unit", args.unit] if args.unit else [])]
    print(Lab.attach().node(args.of).run(words).stdout, end="")
    return 0


def _exec(args: argparse.Namespace) -> int:
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise LabError("exec: which program? e.g. node exec 1 -- systemctl status docker")
    node = Lab.attach().node(args.node)
    terminal = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    os.execvp("docker", ["docker", "exec", "-i", *terminal, node.name, *words])


def _shell(args: argparse.Namespace) -> int:
    node = Lab.attach().node(args.node)
    os.execvp("ssh", ["ssh", *ssh.OPTIONS, "-i", str(ssh.key()), f"root@{node.address}"])
