"""The modules of roles/node_preflight/files and the inventory script, imported as they lie there.

On the controller they are a program of its own, with plain names; here they must not stand in anybody's way.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.unit.roles import modules

ROOT = Path(__file__).resolve().parents[3]
FILES = ROOT / "roles" / "node_preflight" / "files"
SCRIPT = ROOT / "inventory" / "heterofleet.py"
NAMES = tuple(path.stem for path in sorted(FILES.glob("*.py")) if path.stem != "look")


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("heterofleet_inventory", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULES = modules(FILES, NAMES)
DYNAMIC: Any = _script()
