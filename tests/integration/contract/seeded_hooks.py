"""What schemathesis loads: most requests name things that exist, so that they get past "not found" and "not yours".

The names come in the variable CONTRACT_SEEDS (JSON). Which cases get them goes by turns, operation by operation: the
few cases of an operation would now and then all be others by chance. What was answered is counted in the file
CONTRACT_ANSWERS.
"""

from __future__ import annotations

import atexit
import json
import os
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import schemathesis

SEEDS: dict[str, Any] = json.loads(os.environ["CONTRACT_SEEDS"])
ANSWERS: Counter[str] = Counter()
TURNS: Counter[str] = Counter()


@schemathesis.hook
def before_call(ctx: Any, case: Any, kwargs: Any) -> None:
    """Three of four cases get names that exist; a body's members are replaced only where they are there."""
    number = zlib.crc32(repr((case.path_parameters, case.query, case.body)).encode(errors="replace"))
    path = case.operation.path
    TURNS[f"{case.method} {path}"] += 1
    if TURNS[f"{case.method} {path}"] % 4 == 0:
        return
    some = next((names for part, names in SEEDS["ids"].items() if f"/{part}/" in path), None)
    known = SEEDS["paths"].get(f"{case.method} {path}", some)
    if known and isinstance(case.path_parameters, dict) and "id" in case.path_parameters:
        case.path_parameters["id"] = known[(number >> 2) % len(known)]
    if isinstance(case.query, dict) and "node_id" in case.query:
        case.query["node_id"] = SEEDS["members"]["node_id"][0]
    if isinstance(case.body, dict):
        for name, values in SEEDS["bodies"].get(path, SEEDS["members"]).items():
            if name in case.body:
                case.body[name] = values[(number >> 5) % len(values)]


@schemathesis.hook
def after_call(ctx: Any, case: Any, response: Any) -> None:
    """Count what was answered, so that the test can tell a run that reached the services from one that did not."""
    if case.method == case.operation.method.upper():
        ANSWERS[f"{case.method} {case.operation.path} {response.status_code}"] += 1


@atexit.register
def _write_down() -> None:
    Path(os.environ["CONTRACT_ANSWERS"]).write_text(json.dumps(ANSWERS))
