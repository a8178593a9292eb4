"""The volume fence, on real folders and links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtime.agent.tasks.volumes import Fence, VolumeRejected, identity_of, normalise, numeric_owner
from runtime.protocol.tasks import Volume


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data" / "models" / "x").mkdir(parents=True)
    (tmp_path / "data" / "models-secret").mkdir()
    (tmp_path / "data" / "keys").mkdir()
    return tmp_path


def fence(root: Path, deny: tuple[str, ...] = ()) -> Fence:
    return Fence([str(root / "data" / "models")], deny)


def admit(root: Path, host: str, **more: object) -> str:
    return fence(root).admit(Volume(host, "/x", **more)).path


@pytest.mark.case("FC-030")
def test_lexical_fences(root: Path) -> None:
    """Dot-dot, look-alike siblings and odd spellings led out of the allowed folder."""
    models = str(root / "data" / "models")
    refused = [
        f"{models}/../../etc",
        f"{models}-secret",
        f"//{models}//./x/../../keys",
        f"{models}/x\n/etc",
        "",
        "data/models",
        f"{models}/\0",
    ]
    for host in refused:
        with pytest.raises(VolumeRejected):
            admit(root, host)
    with pytest.raises(VolumeRejected, match="does not exist"):
        admit(root, f"{models}/%2e%2e")
    (root / "data" / "models" / "%2e%2e").mkdir()
    assert admit(root, f"{models}/%2e%2e") == f"{models}/%2e%2e"
    assert admit(root, models) == models
    assert admit(root, f"{models}//./x/") == f"{models}/x"
    assert admit(root, f"{models}/x/../x") == f"{models}/x"


@pytest.mark.case("FC-031")
def test_a_missing_source_is_refused_and_not_made(root: Path) -> None:
    """Docker made a missing folder as root and the job ran on nothing: it is refused, and nothing is made."""
    typo = root / "data" / "models" / "typo"
    with pytest.raises(VolumeRejected, match=f"mount source does not exist: {typo}"):
        admit(root, str(typo))
    assert not typo.exists()


def test_create_makes_the_last_folder_only(root: Path) -> None:
    models = root / "data" / "models"
    source = fence(root).admit(Volume(str(models / "out"), "/x", create=True), owner=(1234, 1235))
    found = (models / "out").stat()
    assert (found.st_uid, found.st_gid, found.st_ino) == (1234, 1235, source.inode)
    with pytest.raises(VolumeRejected, match="does not exist"):
        admit(root, str(models / "a" / "b"), create=True)
    assert not (models / "a").exists()


def test_links_inside_are_resolved_and_links_out_are_refused(root: Path) -> None:
    models = root / "data" / "models"
    (models / "inside").symlink_to("x")
    (models / "out").symlink_to("../keys")
    (models / "etc").symlink_to("/etc")
    (models / "loop").symlink_to("loop")
    assert admit(root, str(models / "inside")) == str(models / "x")
    for name in ("out", "etc", "loop"):
        with pytest.raises(VolumeRejected):
            admit(root, str(models / name))


def test_create_behind_a_link_that_leads_out_makes_nothing(root: Path) -> None:
    (root / "data" / "models" / "out").symlink_to("../keys")
    with pytest.raises(VolumeRejected):
        admit(root, str(root / "data" / "models" / "out" / "new"), create=True)
    assert not (root / "data" / "keys" / "new").exists()


def test_an_allowed_prefix_may_be_a_link_itself(root: Path) -> None:
    (root / "alias").symlink_to(root / "data" / "models")
    assert Fence([str(root / "alias")]).admit(Volume(str(root / "alias" / "x"), "/x")).path.endswith("models/x")


@pytest.mark.parametrize(
    "host", ["/", "/etc", "/etc/ssl", "/var/lib/docker/volumes", "/var/lib", "/lib64", "/usr/share", "/run"]
)
def test_always_denied(host: str) -> None:
    with pytest.raises(VolumeRejected, match="never allowed"):
        Fence(["/"]).admit(Volume(host, "/x"))


def test_configured_denials_are_added(root: Path) -> None:
    denied = str(root / "data" / "models" / "x")
    with pytest.raises(VolumeRejected, match="never allowed"):
        fence(root, (denied,)).admit(Volume(denied, "/x"))


def test_sockets_and_devices_are_no_sources(root: Path) -> None:
    os.mkfifo(root / "data" / "models" / "pipe")
    with pytest.raises(VolumeRejected, match="neither a folder nor a file"):
        admit(root, str(root / "data" / "models" / "pipe"))


@pytest.mark.parametrize("target", ["", "relative", "/", "//", "/a/../b", "/x\n"])
def test_a_wrong_place_in_the_container_is_refused(root: Path, target: str) -> None:
    with pytest.raises(VolumeRejected, match="in the container"):
        fence(root).admit(Volume(str(root / "data" / "models"), target))


def test_a_swapped_source_has_another_identity(root: Path) -> None:
    models = root / "data" / "models"
    source = fence(root).admit(Volume(str(models / "x"), "/x"))
    assert identity_of(source.path) == (source.device, source.inode)
    (models / "x").rename(models / "y")
    assert identity_of(source.path) is None
    (models / "x").symlink_to("/etc")
    assert identity_of(source.path) != (source.device, source.inode)


def test_normalise_and_owner() -> None:
    assert normalise("//data//x/./y/../z") == "/data/x/z"
    assert [numeric_owner(user) for user in (None, "root", "7", "7:8", "7:x")] == [None, None, (7, 7), (7, 8), None]
