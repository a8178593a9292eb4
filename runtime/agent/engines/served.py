"""What an engine answers to ``GET /v1/models``: the OpenAI form, as vLLM, SGLang, llama.cpp and others print it.

Only ``data[].id`` names a model: vLLM puts other ids into ``permission``, llama.cpp lists the same models once more
under ``models``. The context length is ``max_model_len`` (vLLM, SGLang) or ``meta.n_ctx`` (llama.cpp).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Optional

MODELS_LIMIT = 1000
LONGEST_CONTEXT = 2**53
"""In tokens: a larger number would not outlive its way through JSON."""


@dataclass(frozen=True)
class ServedModel:
    """``root`` is the path or name that the engine loaded it from, as its own container sees it."""

    id: str
    max_model_len: Optional[int] = None
    root: Optional[str] = None


@dataclass(frozen=True)
class Served:
    """``owned_by`` is the engine's word for itself, where all models agree on one."""

    models: tuple[ServedModel, ...]
    owned_by: Optional[str] = None


def read_served(text: str) -> Served:
    """The models in an answer, each once. Raises ValueError for what is not such an answer."""
    try:
        document: Any = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    rows = document.get("data") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise ValueError("no list of models under 'data'")
    found: dict[str, ServedModel] = {}
    owners: set[str] = set()
    for row in rows[:MODELS_LIMIT]:
        name = row.get("id") if isinstance(row, dict) else None
        if not isinstance(name, str) or not name:
            continue
        owner, root = row.get("owned_by"), row.get("root")
        if isinstance(owner, str) and owner:
            owners.add(owner)
        found.setdefault(name, ServedModel(name, _context(row), root if isinstance(root, str) and root else None))
    return Served(tuple(found.values()), owners.pop() if len(owners) == 1 else None)


def _context(row: dict[str, Any]) -> Optional[int]:
    meta = row.get("meta")
    for value in (row.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None):
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < LONGEST_CONTEXT:
            return value
    return None
