"""What the control plane's program on the host decides on its way back, without a host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles import ROOT, modules

OLD, NEW = b'database_url: "sqlite:///old.db"\n', b'database_url: "postgresql:///new"\n'
COPY = {"file": "/backups/old.db", "revision": 7}


MODULES = modules(ROOT / "roles" / "control_plane" / "files", ("host", "change"))
host, change = MODULES["host"], MODULES["change"]


class Site:
    """A host with the new settings in force, whose old ones are kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, known: bool, revision: int) -> None:
        self.settings, self.done = NEW, list[str]()
        self.known, self.revision = known, revision
        monkeypatch.setattr(change, "run", lambda *words: None)
        monkeypatch.setattr(change, "start", lambda words: self.done.append("started"))
        monkeypatch.setattr(change, "put_link", lambda name, release: None)
        monkeypatch.setattr(
            change, "contents", lambda folder=None: {"server.yaml": self.settings if not folder else OLD}
        )
        monkeypatch.setattr(change, "install", self.install)
        monkeypatch.setattr(change, "tool", self.tool)

    def install(self, words: Any, files: dict[str, bytes], folder: Path | None = None) -> None:
        self.settings = files["server.yaml"]

    def tool(self, words: Any, release: str, *command: str) -> dict[str, Any]:
        assert self.settings == OLD, "the copy is of the database that the old settings name"
        self.done.append(command[0])
        return {"known": self.known, "revision": self.revision, "schema": "1"}


def take_back() -> Any:
    return change.take_back({}, {"from": "a", "previous": None, "backup": COPY}, "b", {"server.yaml": NEW})


@pytest.mark.parametrize(
    ("known", "revision", "done"),
    [(True, 7, ["migrate", "started"]), (False, 7, ["migrate", "restore", "started"])],
)
def test_the_way_back_touches_the_database_of_the_old_settings_only(
    monkeypatch: pytest.MonkeyPatch, known: bool, revision: int, done: list[str]
) -> None:
    site = Site(monkeypatch, known, revision)
    assert take_back() is None
    assert (site.done, site.settings) == (done, OLD)


def test_what_a_new_server_has_served_stays_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, known=False, revision=8)
    assert "the new server had served" in take_back()
    assert (site.done, site.settings) == (["migrate"], NEW)


def test_a_rollback_to_settings_with_another_database_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with another database is another control plane."""
    site = Site(monkeypatch, known=True, revision=7)
    site.settings = OLD
    monkeypatch.setattr(change, "contents", lambda folder=None: {"server.yaml": NEW if folder else OLD})
    monkeypatch.setattr(change, "journalled", dict)
    monkeypatch.setattr(change, "link", lambda name: {"current": "b", "previous": "a"}[name])
    monkeypatch.setattr(change, "whole", lambda release: True)
    with pytest.raises(change.Refusal, match="another database"):
        change.rollback({"release": "", "new_database": False})


def test_no_backup_is_looked_for_where_its_description_says(tmp_path: Path) -> None:
    """The server's user writes there, and root removes what is old."""
    (tmp_path / "1.db").touch()
    (tmp_path / "1.db.json").write_text(json.dumps({"file": "/etc/passwd", "revision": 1}))
    assert host.backups({"backups": str(tmp_path)}) == [{"file": str(tmp_path / "1.db"), "revision": 1}]
