"""PostgreSQL's own programs for copies. A password goes to them in a file of mode 0600, never in an argument or a
variable, where others would see it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import sqlalchemy as sa

from runtime.server.exit_codes import EXIT_CANNOT_WRITE, EXIT_UNAVAILABLE
from runtime.server.store.errors import StoreError

EMPTY = """
DO $$
DECLARE
    found text;
BEGIN
    FOR found IN SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = current_schema() LOOP
        EXECUTE 'DROP TABLE ' || found || ' CASCADE';
    END LOOP;
END
$$
"""
"""A dump takes away only what it brings: a table of a later release would stay beside it."""


def dump(url: sa.URL, target: Path) -> None:
    """The whole database as SQL that makes it anew. Raises StoreError."""
    with target.open("wb") as file:
        target.chmod(0o600)
        _run(url, ["pg_dump", "--no-owner", "--no-privileges"], stdout=file.fileno())


def load(url: sa.URL, source: Path) -> None:
    """Replace all tables by those of a dump, in one transaction. Raises StoreError."""
    words = ["psql", "--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1"]
    _run(url, [*words, "--output=/dev/null", f"--command={EMPTY}", f"--file={source}"])


def _run(url: sa.URL, command: list[str], stdout: int = subprocess.DEVNULL) -> None:
    plain = sa.URL.create("postgresql", url.username, None, url.host, url.port, url.database, url.query)
    with tempfile.NamedTemporaryFile("w", suffix=".pgpass") as passwords:  # made 0600
        environ = dict(os.environ)
        if url.password:
            escaped = str(url.password).replace("\\", "\\\\").replace(":", "\\:")
            passwords.write(f"*:*:*:*:{escaped}\n")
            passwords.flush()
            environ["PGPASSFILE"] = passwords.name
        try:
            done = subprocess.run(
                [*command, "--no-password", f"--dbname={plain.render_as_string(hide_password=False)}"],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.PIPE,
            )
        except FileNotFoundError:
            raise StoreError(
                EXIT_UNAVAILABLE,
                f"{command[0]} is not installed here and copies of the database need it; install PostgreSQL's client.",
            ) from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise StoreError(EXIT_CANNOT_WRITE, f"{command[0]} failed: {said[0] if said else done.returncode}")
