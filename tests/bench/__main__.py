"""``python -m tests.bench [NAME ...] [--record]``; without names all of them."""

from __future__ import annotations

import argparse
import datetime
import importlib
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.measure import Figure

NAMES = ("heartbeat", "start", "rest", "reconcile", "memory", "deploy")
RESULTS = Path(__file__).with_name("RESULTS.md")


def record(figures: list[Figure]) -> None:
    """Add the figures to RESULTS.md under today's date and the commit they were measured on."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    dirty = subprocess.run(["git", "status", "--porcelain", "runtime"], capture_output=True, text=True).stdout
    title = f"{datetime.date.today()} · {commit.stdout.strip()}{' (changed tree)' if dirty.strip() else ''}"
    lines = [f"\n## {title}\n", "| what | seen | budget | kept |", "|---|---|---|---|"]
    lines += [f"| {f.what} | {f.seen} | {f.budget} | {'yes' if f.kept else 'NO'} |" for f in figures]
    with RESULTS.open("a") as file:
        file.write("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; none: all")
    parser.add_argument("--record", action="store_true", help="add the figures to RESULTS.md")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    figures: list[Figure] = []
    for name in arguments.names or NAMES:
        figures += importlib.import_module(f"tests.bench.{name}").measure()
    table = Table(title="Budgets")
    for column in ("what", "seen", "budget", "kept"):
        table.add_column(column)
    for figure in figures:
        table.add_row(figure.what, figure.seen, figure.budget, "yes" if figure.kept else "[red]NO[/red]")
    Console().print(table)
    if arguments.record:
        record(figures)
    return 0 if all(figure.kept for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
