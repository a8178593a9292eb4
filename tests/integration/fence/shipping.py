"""The agent's code on a node, run there by the node's own Python: no installed agent is needed."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.lab import Node

ROOT = Path(__file__).parents[3]
THERE = "/var/tmp/hf-fence"
_OURS = ("runtime/__init__.py", "runtime/protocol", "runtime/agent", "tests/integration/fence")
_LIBRARIES = ("docker", "requests", "urllib3", "idna", "certifi", "charset_normalizer", "yaml")


def _archive() -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        for name in _OURS:
            archive.add(ROOT / name, name, filter=lambda entry: None if "__pycache__" in entry.name else entry)
        for library in _LIBRARIES:
            found = importlib.util.find_spec(library)
            assert found is not None and found.submodule_search_locations
            archive.add(found.submodule_search_locations[0], library)
    return output.getvalue()


@contextlib.contextmanager
def shipped(node: Node) -> Iterator[Node]:
    """The code is there while the block runs."""
    node.run(["sh", "-c", f"rm -rf {THERE} && mkdir {THERE} && tar -x -C {THERE}"], input=_archive())
    try:
        yield node
    finally:
        node.run(["rm", "-rf", THERE])


def run_there(node: Node, module: str, *words: object, timeout: float, around: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON that a module of ours prints on the node; ``around`` is a program that runs it."""
    environment = ["env", f"PYTHONPATH={THERE}", "PYTHONDONTWRITEBYTECODE=1"]
    argv = [*around, *environment, "python3", "-m", module, *map(str, words)]
    done = node.run(argv, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))
