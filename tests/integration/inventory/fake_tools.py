"""Vendors' tools that are not there: programs on disk that print what they are told to; and ``inventory`` with them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from runtime.agent.main import main

ROOT = Path(__file__).resolve().parents[3]
REFUSES = "echo 'unknown option' >&2; exit 2"
SILENT = "exit 0"


def script(path: Path, body: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def answering(path: Path, answers: Mapping[Sequence[str], str], *, otherwise: str = REFUSES, status: int = 0) -> Path:
    """A tool that prints the text of the arguments it is given, and ends with ``status``; ``otherwise`` is done for
    all other arguments."""
    lines = ['case "$*" in']
    for number, (arguments, text) in enumerate(answers.items()):
        answer = path.with_name(f"{path.name}.{number}")
        answer.parent.mkdir(parents=True, exist_ok=True)
        answer.write_text(text, "utf-8")
        lines.append(f"'{' '.join(arguments)}') cat '{answer}'; exit {status};;")
    return script(path, "\n".join([*lines, f"*) {otherwise};;", "esac"]))


def process(*words: str, environment: Optional[Mapping[str, str]] = None) -> subprocess.CompletedProcess[str]:
    """``heterofleet-agent inventory`` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "runtime.agent.main", "inventory", *words],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=300,
    )


def inventory(*words: str) -> tuple[dict[str, Any], str]:
    """The command's JSON and its table, without the start of a process for each."""
    printed = []
    for form in (("--json",), ()):
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as aside:
            assert main(["inventory", *form, *words]) == 0
        printed.append(out.getvalue())
    report = json.loads(printed[0])
    assert aside.getvalue() == (f"{report['error']}\n" if report["error"] else "")
    return report, printed[1]
