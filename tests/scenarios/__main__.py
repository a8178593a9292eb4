"""``python -m tests.scenarios run|create|destroy``; molecule's own playbooks call the last two."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.lab import Lab, LabError, engine, setup
from tests.scenarios import place

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
NODES = 3


def scenarios() -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "molecule").glob("*/molecule.yml"))


def run(chosen: list[str]) -> int:
    """Each scenario after the other; a line for each at the end."""
    was_up = engine.version() is not None and bool(setup.existing())
    lab = Lab.attach() if was_up else Lab.up(nodes=NODES)
    environ = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    lines: list[str] = []
    worst = 0
    try:
        for name in chosen or scenarios():
            began = time.monotonic()
            # By name: molecule finds it by itself in a checkout only.
            shared = ("--base-config", ROOT / ".config" / "molecule" / "config.yml")
            words = [BIN / "molecule", *shared, "test", "--scenario-name", name]
            code = subprocess.run(words, cwd=ROOT, env=environ).returncode
            worst = max(worst, abs(code))
            lines.append(f"{name:<14} {'passed' if code == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s")
    finally:
        if not was_up and os.environ.get("HF_LAB_KEEP") != "1":
            lab.down()
    print("\n".join(lines))
    return worst


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios")
    actions = parser.add_subparsers(dest="action", required=True)
    running = actions.add_parser("run", help="all, or those that are named")
    running.add_argument("scenario", nargs="*", choices=[[], *scenarios()], metavar="SCENARIO")
    for name in ("create", "destroy"):
        one = actions.add_parser(name, help="what molecule's playbook of this name does")
        one.add_argument("scenario")
        one.add_argument("folder", type=Path)
    args = parser.parse_args(words)
    try:
        if args.action == "run":
            return run(args.scenario)
        if args.action == "destroy":
            print("given back" if place.destroy(Lab.attach(), args.scenario, args.folder) else "nothing to give back")
            return 0
        # The platforms come by standard input.
        place.create(Lab.attach(), args.scenario, args.folder, json.load(sys.stdin))
    except LabError as error:
        print(f"scenarios: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
