"""The counts at the end of every run, and that a run which left tests out does not pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"

SUITE = {
    "unit/test_a.py": """
import pytest

@pytest.mark.case("FC-001")
def test_good():
    assert True

@pytest.mark.case("FC-002")
@pytest.mark.parametrize("n", [1, 2])
def test_twice(n):
    assert n
""",
    "integration/test_b.py": """
import pytest

def test_good():
    assert True

def test_left_out():
    pytest.skip("not today")
""",
    "e2e/test_c.py": """
import pytest

@pytest.fixture
def broken():
    raise RuntimeError("no engine")

@pytest.mark.case("FC-003")
def test_never_begun(broken):
    assert True
""",
}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    tests = tmp_path / "tests"
    for name, text in SUITE.items():
        path = tests / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shutil.copy(CONFTEST, tests / "conftest.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    case(id): a case\n")
    return tmp_path


def run(folder: Path, *words: str, allow: bool = False) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HF_ALLOW", "PYTEST"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env={**environ, "HF_ALLOW_SKIP": "1"} if allow else environ,
        capture_output=True,
        text=True,
        check=False,
    )


def test_counts_by_kind_and_cases(suite: Path) -> None:
    done = run(suite, "--cases", "tests", allow=True)
    lines = done.stdout.splitlines()
    assert "unit: 3 collected, 3 run, 0 skipped, 0 deselected" in lines
    assert "integration: 2 collected, 1 run, 1 skipped, 0 deselected" in lines
    assert "e2e: 1 collected, 1 run, 0 skipped, 0 deselected" in lines
    assert "FC-001: passed (tests/unit/test_a.py::test_good)" in lines
    assert "FC-002: passed (tests/unit/test_a.py::test_twice)" in lines
    assert "FC-003: failed (tests/e2e/test_c.py::test_never_begun)" in lines
    assert "cases: 3 covered" in lines
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("words", "allow", "code"),
    [
        (("tests/unit",), False, 0),
        (("tests/unit", "-k", "good"), False, 1),
        (("tests/unit", "-k", "good"), True, 0),
        (("tests/integration",), False, 1),
        (("tests/integration",), True, 0),
    ],
)
def test_a_run_that_left_tests_out_passes_only_when_that_was_allowed(
    suite: Path, words: tuple[str, ...], allow: bool, code: int
) -> None:
    done = run(suite, *words, allow=allow)
    assert done.returncode == code, done.stdout
    assert ("tests were left out" in done.stdout) == (code == 1)
