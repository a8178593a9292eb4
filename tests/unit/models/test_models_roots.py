"""Which walks there are: one for each folder and each mount below it, and none twice."""

from __future__ import annotations

import pytest

from runtime.agent.models.roots import Mount, Root, read_mounts, roots_of

ROOT = Mount("/", "8:1", "/")
DATA = Mount("/data", "8:17", "/")
NFS = Mount("/data/models/nfs", "0:50", "/")

TEXT = rb"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /proc rw - proc proc rw
40 22 8:17 /sub\040volume /data rw master:3 - ext4 /dev/sdb1 rw
41 40 0:50 / /data/a\134b\011c\303\251\377 rw - nfs4 server:/export rw
42 40 0:51 / /data/twice rw - nfs server:/a rw
43 40 0:52 / /data/twice rw - nfs server:/b rw

garbage
"""


def test_the_kernels_list_of_mounts() -> None:
    found = {mount.path: mount for mount in read_mounts(TEXT)}
    assert found["/data"] == Mount("/data", "8:17", "/sub volume")
    assert "/data/a\\b\tcé\udcff" in found
    assert found["/data/twice"].device == "0:52", "the last covers the others"
    assert len(found) == 5


@pytest.mark.parametrize(
    ("folders", "mounts", "wanted"),
    [
        # What is always looked at, beside the folders; what is inside another is not walked by itself.
        (["/cache"], [ROOT], [Root("/cache", (), "/", True), Root("/data/models", (), "/")]),
        (["/data/models"], [ROOT], [Root("/data/models", (), "/")]),
        (["/data/"], [ROOT], [Root("/data", (), "/", True)]),
        (["/data/models/x", "/data/models"], [ROOT], [Root("/data/models", (), "/")]),
        (["/data/heteroflow/model-cache"], [DATA, ROOT],
         [Root("/data/models", (), "/data"), Root("/data/heteroflow/model-cache", (), "/data")]),
        # A mount below gets a walk of its own; one that holds the folder does not.
        (["/data/models"], [ROOT, DATA, NFS],
         [Root("/data/models", ("/data/models/nfs",), "/data"), Root("/data/models/nfs", (), "/data/models/nfs")]),
        (["/data/models"], [ROOT, Mount("/data/models", "0:9", "/")], [Root("/data/models", (), "/data/models")]),
        # A second name for what is walked already: a bind mount of the folder, or of a part of it, into itself.
        (["/data/models"], [ROOT, DATA, Mount("/data/models/self", "8:17", "/models")],
         [Root("/data/models", ("/data/models/self",), "/data")]),
        (["/data/models"], [ROOT, DATA, Mount("/data/models/again", "8:17", "/models/part")],
         [Root("/data/models", ("/data/models/again",), "/data")]),
        (["/data/models"], [ROOT, DATA, Mount("/data/models/more", "8:17", "/modelsmore")],
         [Root("/data/models", ("/data/models/more",), "/data"), Root("/data/models/more", (), "/data/models/more")]),
        # The list of mounts could not be read.
        (["/data/models"], [], [Root("/data/models", (), "/")]),
    ],
)  # fmt: skip
def test_walks(folders: list[str], mounts: list[Mount], wanted: list[Root]) -> None:
    key = lambda root: root.path  # noqa: E731
    assert sorted(roots_of(folders, mounts), key=key) == sorted(wanted, key=key)
