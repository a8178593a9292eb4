"""A pipeline (``model_index.json``) is one model made of the models in its folders. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Optional

from runtime.agent.models.assemble import Model
from runtime.agent.models.integrity import COMPLETE, INCOMPLETE, UNKNOWN
from runtime.agent.models.names import hub_name

_WORST = (COMPLETE, UNKNOWN, INCOMPLETE)


def gathered(models: Iterable[Model], pipelines: Collection[str]) -> list[Model]:
    """The models, with those below the folder of a pipeline made one: as large as all, as whole as the worst."""
    found: list[Model] = []
    inside: dict[str, list[Model]] = {}
    for model in models:
        home = _home(model.path, pipelines)
        if home is None:
            found.append(model)
        else:
            inside.setdefault(home, []).append(model)
    for home, parts in inside.items():
        worst = max(parts, key=lambda part: _WORST.index(part.state))
        hub = hub_name(home)
        found.append(
            replace(
                worst,
                name=home if hub is None else hub[0],
                path=home,
                size=sum(part.size for part in parts),
                source="scan" if hub is None else "cache",
                format=max(parts, key=lambda part: part.size).format,
            )
        )
    return found


def _home(path: str, pipelines: Collection[str]) -> Optional[str]:
    """The outermost pipeline around a path."""
    parts = path.split("/")
    return next((home for n in range(len(parts) + 1) if (home := "/".join(parts[:n])) in pipelines), None)
