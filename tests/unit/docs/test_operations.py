"""docs/operations.md names every setting with its default, and nothing that is none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.settings import AgentSettings
from runtime.cli.settings import CliSettings
from runtime.server.settings import ServerSettings
from tests.unit.docs import default_text, leaves
from tests.unit.protocol.doc_tables import rows_under

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("who", "cls"), [("server", ServerSettings), ("agent", AgentSettings), ("cli", CliSettings)], ids=str
)
def test_every_setting_is_documented_with_its_default(who: str, cls: Any) -> None:
    documented = [(row[0], row[1]) for row in rows_under("operations.md", f"{who} setting", "default", "what it is")]
    assert documented == [(f"`{path}`", default_text(value)) for path, value in leaves(cls)]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/operations.md", "docs/protocol.md"])
def test_links_and_make_targets_of_a_page_exist(document: str) -> None:
    text = (ROOT / document).read_text("utf-8")
    page = (ROOT / document).parent
    for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", text):
        assert (page / target).exists(), f"{document} links to {target}"
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    used = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.M))
    assert used <= targets, f"{document} names {used - targets}"
