"""manifest.json: its exact shape, and that nothing in it can lead out of its folder."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.protocol.manifest import BuildFile, Manifest, ManifestError, parse_manifest

FILE = {"file": "heterofleet-agent-amd64-0011aabb", "size": 7, "md5": "0" * 32, "sha256": "0011aabb" + "0" * 56}
GOOD: dict[str, Any] = {
    "version": "0.1.0",
    "commit": "1234567890ab",
    "built_at": "2026-11-29T18:00:00Z",
    "dirty": False,
    "protocol": 1,
    "builds": {"amd64": FILE},
}


def changed(path: str, value: Any) -> str:
    document = json.loads(json.dumps(GOOD))
    *folders, last = path.split(".")
    inside = document
    for folder in folders:
        inside = inside[folder]
    inside[last] = value
    return json.dumps(document)


def test_written_as_the_contract_says() -> None:
    manifest = Manifest("0.1.0", "1234567890ab", "2026-11-29T18:00:00Z", False, 1, {"amd64": BuildFile(**FILE)})
    assert json.loads(manifest.text()) == GOOD
    assert parse_manifest(manifest.text()) == manifest


@pytest.mark.parametrize(
    ("dirty", "release"),
    [(False, "0.1.0-1234567890ab-0011aabb"), (True, "0.1.0-1234567890ab-dirty-0011aabb")],
)
def test_release_folder(dirty: bool, release: str) -> None:
    assert parse_manifest(changed("dirty", dirty)).release("amd64") == release


def test_members_of_a_newer_release_are_ignored() -> None:
    assert parse_manifest(changed("signature", "x")).version == "0.1.0"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", "../../etc"),
        ("version", ""),
        ("version", "0.1 0"),
        ("commit", "-rf"),
        ("commit", "a/b"),
        ("builds.amd64.file", "../secret.key"),
        ("builds.amd64.file", "/etc/shadow"),
        ("builds.amd64.file", ".hidden"),
        ("builds.amd64.sha256", "0" * 63),
        ("builds.amd64.sha256", "G" * 64),
        ("builds.amd64.md5", "0" * 31 + "\n"),
        ("builds.amd64.size", "7"),
        ("builds", []),
        ("dirty", "no"),
    ],
)
def test_a_wrong_member_is_named(path: str, value: Any) -> None:
    with pytest.raises(ManifestError, match=path.replace(".", r"\.")):
        parse_manifest(changed(path, value))


@pytest.mark.parametrize("text", ["", "<html>", "[]", "null", '{"version": "1"'])
def test_what_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(ManifestError):
        parse_manifest(text)
