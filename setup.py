"""What setup.cfg cannot say: folders that go whole into share/heterofleet (its data_files know no sub-folders)."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup

SHARE = "share/heterofleet"
FOLDERS = ("inventory", "playbooks", "roles", "templates")
"""`heterofleet fleet` and the control plane find them there when they do not run from a checkout."""


def data_files() -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {SHARE: ["ansible.cfg"]}
    for folder in FOLDERS:
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
                found.setdefault(f"{SHARE}/{path.parent}", []).append(str(path))
    return sorted(found.items())


setup(data_files=data_files())
