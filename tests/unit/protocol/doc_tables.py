"""Tables of the docs, read back, so that they can be held against the code."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"


def rows_under(document: str, *titles: str) -> list[list[str]]:
    """The cells of every table in ``docs/<document>`` whose heads are ``titles``, as one list of rows."""
    rows: list[list[str]] = []
    inside = False
    for line in (DOCS / document).read_text("utf-8").splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip().replace("\\|", "|") for cell in line.strip().strip("|").replace("\\|", "\0").split("|")]
        cells = [cell.replace("\0", "|") for cell in cells]
        if tuple(cells) == titles:
            inside = True
        elif inside and set("".join(cells)) - set("-: "):
            rows.append(cells)
    assert rows, f"{document} has no table with the heads {titles}"
    return rows
