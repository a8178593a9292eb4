"""Who may import whom: the table of docs/architecture.md, held against the sources.

And what no committed file may name: a folder of the machine it was written on, or a package registry's host.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "runtime"

AGENT_LIBRARIES = {"requests", "urllib3", "docker", "pynvml", "psutil", "yaml"}  # urllib3 comes with requests
CLI_LIBRARIES = {"click", "rich", "requests", "yaml"}
SERVER_LIBRARIES = {
    *("flask", "werkzeug", "waitress", "sqlalchemy", "alembic", "pydantic", "prometheus_client", "cryptography"),
    *("psycopg", "starlette", "uvicorn", "yaml", "click", "rich", "jinja2"),
}

SHARED_WITH_SERVER = ("elf", "errors", "folders", "publish", "scripts")
"""What a server that hands out builds, and is a mirror, does exactly as the command line does it."""

ROOMS: dict[str, tuple[set[str], set[str]]] = {
    "protocol": ({"protocol"}, set()),
    "agent": ({"agent", "protocol"}, AGENT_LIBRARIES),
    "server": ({"server", "protocol", *(f"artifacts.{name}" for name in SHARED_WITH_SERVER)}, SERVER_LIBRARIES),
    "cli": ({"cli", "protocol"}, CLI_LIBRARIES),
    "artifacts": ({"artifacts", "protocol"}, {*CLI_LIBRARIES, "pex", "jinja2"}),
    "fleet": ({"fleet", "cli", "protocol"}, {*CLI_LIBRARIES, "ansible_runner"}),
}
"""Room -> the rooms (or single modules) of ours, and the libraries, that its modules may import."""

HEAVY = {"flask", "sqlalchemy", "alembic", "pydantic", "pex", "docker", "pynvml", "ansible_runner", "cryptography"}


@dataclass(frozen=True)
class Import:
    module: str
    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"


def sources(room: str) -> list[Path]:
    return sorted(path for path in (RUNTIME / room).rglob("*.py") if "migrations" not in path.parts)


def imports(path: Path) -> Iterator[Import]:
    """Every import in a module, also those inside functions and those for the type checker only."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, path, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are written out, not relative"
            assert node.module is not None
            if node.module == "runtime":
                for alias in node.names:
                    yield Import(f"runtime.{alias.name}", path, node.lineno)
            else:
                yield Import(node.module, path, node.lineno)


def test_every_room_has_a_rule() -> None:
    rooms = {path.name for path in RUNTIME.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert rooms == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    ours, libraries = ROOMS[room]
    found = [entry for path in sources(room) for entry in imports(path)]
    assert found or room == "fleet"
    wrong = []
    for entry in found:
        top, *rest = entry.module.split(".")
        if top == "runtime":
            # `from runtime import protocol` and the package's own docstring need no room.
            if rest and rest[0] not in ours and ".".join(rest) not in ours:
                wrong.append(str(entry))
        elif top not in sys.stdlib_module_names and top not in libraries and top != "_typeshed":
            wrong.append(str(entry))
    assert wrong == []


@pytest.mark.parametrize("room", ["protocol", "agent"])
def test_what_runs_on_nodes_is_python_3_9(room: str) -> None:
    """Nodes have old interpreters: their grammar, and hints that are evaluated there."""
    wrong = []
    for path in sources(room):
        text = path.read_text("utf-8")
        tree = ast.parse(text, str(path), feature_version=(3, 9))
        if len(tree.body) > 1 and any(isinstance(node, ast.ClassDef | ast.FunctionDef) for node in tree.body):
            assert "from __future__ import annotations" in text, path
        for node in ast.walk(tree):
            if isinstance(node, ast.Match):
                wrong.append(f"{path}:{node.lineno}: match")
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "zip"
                and node.keywords
            ):
                wrong.append(f"{path}:{node.lineno}: zip(strict=)")
            if isinstance(node, ast.keyword) and node.arg in ("slots", "kw_only"):
                wrong.append(f"{path}:{node.value.lineno}: dataclass({node.arg}=)")
    assert wrong == []


def test_bodies_have_hints_that_python_3_9_evaluates() -> None:
    """``str | None`` in a body is a string until the codec asks for its meaning, and then a TypeError."""
    wrong = []
    for name in ("heartbeat", "tasks", "nodes", "instructions"):
        path = RUNTIME / "protocol" / f"{name}.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.AnnAssign):
                unions = [part for part in ast.walk(node.annotation) if isinstance(part, ast.BinOp)]
                wrong.extend(f"{path.name}:{node.lineno}" for part in unions if isinstance(part.op, ast.BitOr))
    assert wrong == []


def test_listing_nodes_loads_nothing_heavy() -> None:
    """The mounted groups are imported when they are called, and the table library when a table is printed."""
    code = (
        "import sys\n"
        "from runtime.cli.main import root\n"
        "from click.testing import CliRunner\n"
        "result = CliRunner().invoke(root, ['nodes', 'list', '--help'])\n"
        "assert result.exit_code == 0, result.output\n"
        "help = CliRunner().invoke(root, ['--help']).output\n"
        "assert 'server' in help and 'artifacts' in help, help\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (HEAVY | {"rich"}) & set(done.stdout.split()) == set()
    assert "requests" in done.stdout.split()


def test_the_protocol_loads_nothing_but_the_standard_library() -> None:
    code = (
        "import sys, pkgutil, importlib\n"
        "before = set(sys.modules)\n"
        "import runtime.protocol as p\n"
        "[importlib.import_module('runtime.protocol.' + m.name) for m in pkgutil.iter_modules(p.__path__)]\n"
        "loaded = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(loaded - set(sys.stdlib_module_names) - {'runtime'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# Written in pieces, so that this file does not name them either.
NOT_NAMED = [
    r"(?<![\w.~$}-])/wor" + r"k/",
    r"(?<![\w.-])/far" + r"m/",
    r"\.libra" + r"ry/",
    r"pypi\." + r"org",
    r"pythonhosted\." + r"org",
    r"deb\.debian\." + r"org",
    r"registry\.npmjs\." + r"org",
    r"proxy\.golang\." + r"org",
]


def test_no_committed_file_names_this_machine_or_a_package_registry() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    pattern = re.compile("|".join([*NOT_NAMED, re.escape(f"{ROOT}/")]))
    wrong = []
    for name in filter(None, listed.decode().split("\0")):
        path = ROOT / name
        if not path.is_file() or name == "LICENSE":
            continue
        for number, line in enumerate(path.read_bytes().decode("utf-8", "replace").splitlines(), 1):
            if pattern.search(line):
                wrong.append(f"{name}:{number}: {line.strip()[:100]}")
    assert wrong == []
