"""``tests/device/check``: look at this machine's cards for some seconds, and write down what was found.

    tests/device/check [--out FOLDER] [--seconds N] [--tool NAME=PATH]...

The folder gets ``evidence.json``, ``inventory.json`` and the tools' own words under ``raw/``. Exit codes: 0 all checks
held, 1 one did not, 2 usage, 3 there is no card here (nothing is written).
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Optional

from runtime.agent.hardware.detectors import all_detectors
from runtime.agent.hardware.inventory import Inventory
from runtime.agent.hardware.report import take_inventory
from runtime.agent.hardware.tools import ToolError, ToolRunner, find_command
from tests.device.evidence import Check, agree, real_cards, record, seen, steady

ROOT = Path(__file__).resolve().parents[2]
EVERY_S = 2.0
RAW: dict[str, tuple[tuple[str, ...], ...]] = {
    "nvidia": (("nvidia-smi",), ("nvidia-smi", "-L"), ("nvidia-smi", "-q", "-x"), ("nvidia-smi", "topo", "-m")),
    "ascend": (("npu-smi", "info"), ("npu-smi", "info", "-m")),
    "hygon": (("hy-smi",),),
    "cambricon": (("cnmon",), ("cnmon", "info")),
    "musa": (("mthreads-gmi",), ("mthreads-gmi", "-q", "--json")),
    "biren": (("brsmi",),),
    "kunlun": (("xpu-smi",), ("xpu-smi", "-m")),
    "iluvatar": (("ixsmi",), ("ixsmi", "-q", "-x")),
    "metax": (("mx-smi",), ("mx-smi", "-L")),
    "enflame": (("efsmi",), ("efsmi", "-q")),
}
"""Vendor -> what its tool is asked for the record; nothing here changes a card."""


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="tests/device/check", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("device-check"), help="the folder to write")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on collecting (default 60)")
    parser.add_argument("--tool", action="append", default=[], metavar="NAME=PATH", help="a tool that is not found")
    options = parser.parse_args(arguments)
    if any("=" not in word for word in options.tool):
        parser.error("--tool wants NAME=PATH")
    tools = dict(word.split("=", 1) for word in options.tool)

    report = take_inventory(tools)
    if not real_cards(report):
        found = "; ".join(f"{one['vendor']}: {one['why']}" for one in report["detection"])
        print(f"no card here. {found}", file=sys.stderr)
        return 3
    drivers, collections = _collections(tools, options.seconds)
    checks = [seen(report), agree("the tool alone", report, take_inventory(tools, nvml=False)), collections]
    written = record(report, drivers, checks, date=_now(), commit=_commit(), own=not tools)
    _write(options.out, report, written, tools)
    for check in checks:
        print(f"{ {True: 'ok', False: 'NOT', None: '-'}[check.ok]:4} {check.name}: {check.detail}")
    print(f"evidence: {written['evidence']}; written to {options.out}")
    return 0 if all(check.ok is not False for check in checks) else 1


def _collections(tools: dict[str, str], seconds: float) -> tuple[dict[str, Optional[str]], Check]:
    """The drivers' versions, and how collecting went, as the agent's own loop does it."""
    runner = ToolRunner()
    inventory = Inventory(all_detectors(runner, tools), runner, node_id="device-check", state_dir=None, virtual=0)
    errors: list[Optional[str]] = []
    took: list[float] = []
    end = time.monotonic() + seconds
    try:
        while not errors or time.monotonic() < end:
            began = time.monotonic()
            inventory.round()
            took.append(time.monotonic() - began)
            errors.append(inventory.snapshot().collector_error)
            time.sleep(max(0.0, min(EVERY_S, end - time.monotonic())))
        gpus = inventory.snapshot().gpus or []
    finally:
        inventory.stop()
    return {gpu.vendor: gpu.driver_version for gpu in gpus}, steady(errors, took)


def _write(out: Path, report: dict[str, Any], written: dict[str, Any], tools: dict[str, str]) -> None:
    raw = out / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    runner = ToolRunner()
    for vendor in written["vendors"]:
        for number, (name, *words) in enumerate(RAW.get(vendor["vendor"], ())):
            path = find_command(name, setting=tools.get(name))
            if path is None:
                continue
            try:
                output = runner.run(name, [path, *words])
                text = f"{output.stdout}{output.stderr}\n[exit status {output.status}]\n"
            except ToolError as error:
                text = f"[{error}]\n"
            (raw / f"{vendor['vendor']}-{number}.txt").write_text(f"$ {' '.join((name, *words))}\n{text}")
    (out / "inventory.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / "evidence.json").write_text(json.dumps(written, indent=1) + "\n")


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _commit() -> str:
    try:
        words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
