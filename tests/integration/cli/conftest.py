"""The real command as a subprocess, against a scripted control plane on a real socket."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration.cli.plane import ScriptedPlane

PROGRAM = Path(sys.executable).with_name("heterofleet")
TOKEN = "hf-op-token-of-the-tests"


@dataclass
class Cli:
    """Runs the command with an empty home folder and nothing of this machine's environment but PATH."""

    home: Path
    server_url: str | None
    environ: dict[str, str] = field(default_factory=dict)

    def variables(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        base = {"PATH": os.environ["PATH"], "HOME": str(self.home), "HETEROFLEET_TOKEN": TOKEN}
        if self.server_url:
            base["HETEROFLEET_SERVER_URL"] = self.server_url
        return {**base, **self.environ, **(extra or {})}

    def __call__(
        self, *words: str, stdin: str | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(PROGRAM), *words],
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=self.home,
            env={name: value for name, value in self.variables(env).items() if value != ""},
        )

    def answering(self, answer: bytes, *words: str) -> tuple[int, str]:
        """Run with a terminal as standard input, type ``answer``; exit code and standard error."""
        main, child = pty.openpty()
        try:
            with subprocess.Popen(
                [str(PROGRAM), *words],
                stdin=child,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.home,
                env=self.variables(),
            ) as process:
                os.write(main, answer)
                _, err = process.communicate(timeout=60)
                return process.returncode, err.decode()
        finally:
            os.close(main)
            os.close(child)


@pytest.fixture
def plane() -> Iterator[ScriptedPlane]:
    with ScriptedPlane() as running:
        yield running


@pytest.fixture
def cli(tmp_path: Path, plane: ScriptedPlane) -> Cli:
    return Cli(tmp_path, plane.url)
