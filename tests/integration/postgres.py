"""A private, throw-away PostgreSQL cluster for tests, from Debian's packages.

Started once a session on first use, as the user postgres (it refuses to run as root), with its files in a
folder of its own, on a free loopback port. Each test gets a fresh database.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

USER = "postgres"


class PostgresMissing(RuntimeError):
    """Debian's package postgresql is not installed."""


@dataclass(frozen=True)
class Postgres:
    """A running cluster."""

    port: int
    binaries: Path

    def url(self, database: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """A fresh database; yields its URL."""
        name = f"t{uuid.uuid4().hex}"
        self.sql(f'CREATE DATABASE "{name}"')
        try:
            yield self.url(name)
        finally:
            self.sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run one statement; what it prints."""
        command = [str(self.binaries / "psql"), "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statement]
        return subprocess.run(
            [*command, self.url(database)], check=True, capture_output=True, text=True, timeout=60
        ).stdout.strip()


@contextlib.contextmanager
def cluster() -> Iterator[Postgres]:
    """A cluster that lives as long as the block."""
    binaries = _binaries()
    folder = Path(tempfile.mkdtemp(prefix="hf-postgres-"))
    port = _free_port()
    try:
        folder.chmod(0o755)
        data = folder / "data"
        data.mkdir()
        shutil.chown(data, USER, USER)
        _as_postgres(str(binaries / "initdb"), "-D", str(data), "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={data} -c max_connections=200"
        _as_postgres(
            *(str(binaries / "pg_ctl"), "-D", str(data), "-l", str(data / "log"), "-w", "-t", "60"),
            *("-o", options, "start"),
        )
        try:
            yield Postgres(port, binaries)
        finally:
            _as_postgres(str(binaries / "pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _as_postgres(*command: str) -> None:
    # pg_ctl's child keeps standard output: a pipe would never end.
    result = subprocess.run(
        ["runuser", "-u", USER, "--", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=False,
        cwd="/",
    )
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {result.returncode}")


def _binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parent.parent.name))
    if not found:
        raise PostgresMissing("apt-get install postgresql")
    return found[-1].parent


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
