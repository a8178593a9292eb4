"""What may be said to ``heterofleet-agent``: its commands, their options, and the help that tells of both."""

from __future__ import annotations

import argparse
from pathlib import Path

from runtime.agent.hardware_settings import tool_fault


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    every = argparse.ArgumentParser(
        prog="heterofleet-agent",
        description="The HeteroFleet node agent.",
        epilog="Exit codes: 0, 1 fault, 2 usage, 73 cannot write state, 78 configuration; "
        "of status: 0 registered, 1 not, 3 no agent here; of doctor: 0 good, 1 warnings, 2 failures.",
    )
    commands = every.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run the agent in the foreground")
    _add_settings(run)
    run.add_argument(
        "-v", "--verbose", action="count", default=0, help="log details; twice: those of the libraries too"
    )
    run.add_argument(
        "--adopt-node-id",
        action="store_true",
        help="take the configured node id although work of the old one is still here",
    )

    status = commands.add_parser(
        "status",
        help="how the agent on this machine is",
        epilog="Exit codes: 0 registered, 1 not, 3 no agent here.",
    )
    _add_config(status)
    status.add_argument("--json", action="store_true", help="print one JSON object")
    status.add_argument("--wait", type=_seconds, default=0.0, metavar="S", help="wait up to S seconds until registered")

    config = commands.add_parser("config", help="print the effective settings with their origin, or check them")
    _add_settings(config)
    config.add_argument("what", nargs="?", choices=["check"], help="check the settings: faults, or their number")

    inventory = commands.add_parser("inventory", help="what the scheduler would see of this machine")
    _add_config(inventory)
    inventory.add_argument("--json", action="store_true", help="print one JSON object")
    inventory.add_argument(
        "--tool", action="append", default=[], type=_tool, metavar="NAME=PATH", help="where a vendor's command is"
    )
    inventory.add_argument("--nvidia-smi", metavar="PATH", help="the same as --tool nvidia-smi=PATH")
    inventory.add_argument("--ib-root", metavar="DIR", type=Path, help="instead of /sys/class/infiniband")
    inventory.add_argument("--no-gpu", action="store_true", help="do not look for cards")
    inventory.add_argument("--no-nvml", action="store_true", help="ask nvidia-smi instead of NVML")

    doctor = commands.add_parser(
        "doctor",
        help="what is wrong with this node, and what to do about it",
        epilog="Exit codes: 0 good, 1 warnings or something unknown, 2 failures.",
    )
    _add_config(doctor)
    doctor.add_argument("--json", action="store_true", help="print one JSON object")

    parse = commands.add_parser(
        "parse",
        help="what our parsers make of a tool's output, read from standard input, as JSON",
        usage="%(prog)s TOOL [ARGS ...] < TEXT",
        epilog="Example: nvidia-smi -q | heterofleet-agent parse nvidia-smi -q",
    )
    parse.add_argument("tool", metavar="TOOL", help="the command that printed it (nvidia-smi, npu-smi, docker, ...)")
    given = parse.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="what the command was given")
    given.required = False  # else argparse says that it is

    version = commands.add_parser("version", help="print version, commit and build time")
    version.add_argument("--json", action="store_true", help="print one JSON object")
    return every


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings file (default /etc/heterofleet/agent.yaml)"
    )


def _add_settings(parser: argparse.ArgumentParser) -> None:
    _add_config(parser)
    parser.add_argument("--server", metavar="URL", help="the control plane")
    parser.add_argument("--node-id", metavar="ID", help="this node's id")
    parser.add_argument("--mgmt-addr", metavar="ADDRESS", help="the address under which people reach this node")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 86400:
        raise argparse.ArgumentTypeError("wanted 0 to 86400 seconds")
    return value


def _tool(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not name or not equals or not path:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted NAME=PATH")
    wanted = tool_fault(name)
    if wanted is not None:
        raise argparse.ArgumentTypeError(f"found {name!r}, no command of a vendor; wanted {wanted}")
    return name, path
