"""The lab's registry wants a login, and what it gives out is what was put in."""

from __future__ import annotations

import stat

import pytest

from tests.lab import Lab, LabError, Node, images


def test_pull_without_login_is_refused_and_works_with_it(lab: Lab, node: Node) -> None:
    registry = lab.registry
    reference = registry.push_files("lab/marked:7", {"/etc/mark": b"seven\n"})
    node.docker("rmi", "-f", reference, check=False)
    node.docker("logout", registry.address)
    refused = node.docker("pull", reference, check=False)
    assert refused.returncode != 0
    assert "no basic auth credentials" in refused.stderr
    login = ["login", "-u", registry.user, "--password-stdin", registry.address]
    assert node.docker(*login, input=b"wrong", check=False).returncode != 0
    node.docker(*login, input=registry.password.encode())
    try:
        node.docker("pull", reference)
        assert node.docker("run", "--rm", reference, "cat", "/etc/mark").stdout == "seven\n"
        pushed = "198.18.0.1:5000/lab/from-node:1"
        node.docker("tag", reference, pushed)
        node.docker("push", pushed)
        accept = {"Accept": images.MANIFEST_TYPE}
        assert registry.request("HEAD", "/v2/lab/from-node/manifests/1", headers=accept)[0] == 200
    finally:
        node.docker("logout", registry.address)
        node.docker("rmi", "-f", reference, check=False)


def test_the_task_image_is_in_the_registry_and_on_every_node(lab: Lab) -> None:
    assert lab.registry.request("GET", "/v2/lab/task/tags/list")[0] == 200
    assert lab.registry.request("GET", "/v2/lab/task/tags/list", login=False)[0] == 401
    ids = {node.docker("images", "-q", "--no-trunc", "hf-lab/task:1").stdout.strip() for node in lab.nodes}
    assert len(ids) == 1
    assert ids.pop().startswith("sha256:")


def test_the_password_is_for_root_only_and_a_frozen_registry_answers_nothing(lab: Lab) -> None:
    assert stat.S_IMODE(lab.registry.password_file.stat().st_mode) == 0o600
    lab.registry.freeze()
    try:
        done = lab.node(1).run(["curl", "-s", "-m", "1", "http://198.18.0.1:5000/v2/"], check=False)
        assert done.returncode == 28, "28 is curl's word for a timeout"
    finally:
        lab.registry.thaw()
    assert lab.registry.request("GET", "/v2/")[0] == 200


def test_a_push_that_is_refused_says_so(lab: Lab) -> None:
    with pytest.raises(LabError, match="wanted 202"):
        lab.registry.push_files("NOT-A-NAME:1", {"/x": b""})
