"""docs/operations.md shows the control plane's unit as the role writes it."""

from __future__ import annotations

from pathlib import Path

import jinja2

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_shows_the_unit_of_the_template() -> None:
    template = (ROOT / "templates" / "heterofleet-server.service.j2").read_text("utf-8")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    unit = environment.from_string(template).render(user="heterofleet", write_paths=["/var/lib/heterofleet/server"])
    assert f"```\n{unit.rstrip()}\n```\n" in (ROOT / "docs" / "operations.md").read_text("utf-8")
