"""The child process that walks the roots on one mount, so that a file system that hangs takes nothing else with it.

It gets one JSON object as its argument and prints one as its answer; both are ASCII, with undecodable bytes of names
as lone surrogates. Nothing but the standard library and our own rules is imported here.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from runtime.agent.models.assemble import File, Model, models_in
from runtime.agent.models.integrity import COMPLETE, INCOMPLETE, UNKNOWN
from runtime.agent.models.memory import Memory, SeenFolder, load, save
from runtime.agent.models.names import PIPELINE
from runtime.agent.models.pipelines import gathered
from runtime.agent.models.walk import Budget, Walk, Walked

NICE = 10
TEXT_LIMIT = 500_000
"""Characters of all models' names, paths and reasons together: each may take six bytes in an answer."""
CANNOT_NAME = "its name is not UTF-8, so no task can name it"
_RANK = {COMPLETE: 0, UNKNOWN: 1, INCOMPLETE: 2}


@dataclass(frozen=True)
class Order:
    """One walk. ``memory`` is the file that walks of this root remember in; ``fresh``: look at everything anew."""

    root: str
    mounts: list[str] = field(default_factory=list)
    memory: Optional[str] = None
    fresh: bool = False


def obey(order: Order, budget: Budget, cap: int) -> dict[str, Any]:
    """One walk: ``{"models": [...], "count", "partial", "problems": [[path, words]], "looked": {...}}`` with at most
    ``cap`` models, or ``{"error": errno, "text": words}`` when the root cannot be looked at."""
    file = Path(order.memory) if order.memory is not None else None
    memory = Memory() if file is None or order.fresh else load(file, order.root)
    try:
        walked = Walk(order.root, memory, order.mounts, budget).run()
    except OSError as error:
        return {"error": error.errno, "text": error.strerror or str(error)}
    problems = [[_path(order.root, folder), words] for folder, words in walked.problems.items()]
    if file is not None:
        try:
            save(file, order.root, walked.memory)
        except OSError as error:
            problems.append([str(file), f"what was seen cannot be kept: {error.strerror}"])
    models = [told(order.root, model) for model in found(walked)]
    models.sort(key=lambda model: (_RANK[model.state], model.path, model.format))
    return {
        "models": [dataclasses.astuple(model) for model in models[: fitting(models, cap)]],
        "count": len(models),
        "partial": walked.partial,
        "problems": problems[:20],
        "looked": dataclasses.asdict(walked.looked),
    }


def fitting(models: Iterable[Model], cap: int) -> int:
    """How many of the first models fit into an answer."""
    count = room = 0
    for model in models:
        room += len(model.name) + len(model.path) + len(model.reason or "")
        if count == cap or room > TEXT_LIMIT:
            break
        count += 1
    return count


def found(walked: Walked) -> Iterable[Model]:
    """All models of a walk, pipelines as one each."""
    folders = walked.memory.folders
    models = [
        model
        for name, folder in folders.items()
        if folder.files
        for model in models_in(name, _files(folder), walked.outside.get(name, {}))
    ]
    pipelines = {name for name, folder in folders.items() if any(one.kind == PIPELINE for one in folder.files.values())}
    return gathered(models, pipelines) if pipelines else models


def _files(folder: SeenFolder) -> dict[str, File]:
    return {name: File(file.kind, file.mark[0], file.verdict) for name, file in folder.files.items()}


def told(root: str, model: Model) -> Model:
    """The model under its whole path, in characters that JSON can carry."""
    path, name = _path(root, model.path), model.name or os.path.basename(root)  # noqa: PTH119 (bytes that are no text)
    shown, shown_name = _shown(path), _shown(name)
    state, reason = model.state, model.reason
    if shown != path:
        state = UNKNOWN if state == COMPLETE else state
        reason = CANNOT_NAME if reason is None else f"{CANNOT_NAME}; {reason}"
    return dataclasses.replace(
        model, path=shown, name=shown_name, state=state, reason=None if reason is None else _shown(reason)
    )


def _path(root: str, below: str) -> str:
    return f"{root.rstrip('/')}/{below}" if below else root


def _shown(text: str) -> str:
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def main() -> None:
    """``{"orders": [...], "entries", "seconds", "cap"}`` in, ``{"answers": [...]}`` out; one budget for all."""
    os.nice(NICE)
    asked = json.loads(sys.argv[1])
    budget = Budget(asked["entries"], asked["seconds"])
    answers = [obey(Order(**order), budget, asked["cap"]) for order in asked["orders"]]
    sys.stdout.write(json.dumps({"answers": answers}))
