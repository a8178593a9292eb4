"""A key that is not right installs nothing: every path, owner, time and unit of the node is as before."""

from __future__ import annotations

import json

import pytest

from runtime.artifacts.scripts import SCRIPTS
from tests.integration.distribution.front import Answer, Front, front
from tests.integration.distribution.site import KEY, SCRIPT, Site, changed, snapshot

HEARTBEAT = "/api/v1/agent/heartbeat"

# Name -> content of the key file ({key} is the right one), and what must be said of it.
WRONG = {
    "another": (b"another-key-0123456789\n", "refuses the key"),
    "too-short": (b"k3y", "refuses the key"),
    "almost": (b"{key}x", "refuses the key"),
    "empty": (b"", "is empty"),
    "newline-only": (b"\n", "is empty"),
    "crlf": (b"{key}\r\n", "ends with a carriage return (Windows line ends)"),
    "two-lines": (b"{key}\n{key}\n", "contains a line break"),
    "blank": (b"two words 0123456789", "contains a blank"),
    "blank-at-its-end": (b"{key} \n", "contains a blank"),
    "with-a-mark": (b"\xef\xbb\xbf{key}", "contains the byte 0xef"),
    "binary": (bytes(range(256)), "contains the byte 0x0"),
    "no-ascii": ("schlüssel-0123456789".encode(), "contains the byte 0xc3"),
    "a-page": (b"<html>" + b"x" * 5000, "has more than 4096 bytes"),
}


def refused_by(site: Site, door: Front) -> None:
    """From now on the door refuses the key of a beat, and of nothing else."""
    problem = {
        "type": "about:blank",
        "title": "Wrong key",
        "status": 401,
        "detail": "The key is not the one of this control plane.",
        "code": "bad_api_key",
        "control_plane_id": site.plane.get("/api/v1/nodes").get("control_plane_id", ""),
    }
    door.answers[HEARTBEAT] = Answer(401, json.dumps(problem).encode(), {"Content-Type": "application/problem+json"})


def test_a_wrong_key_ends_with_3_and_touches_nothing(site: Site) -> None:
    for name, (content, _) in WRONG.items():
        site.node.put(f"/root/keys/{name}", content.replace(b"{key}", site.plane.key.encode()), 0o600)
    before = snapshot(site.node, times=True)
    for name, (content, words) in WRONG.items():
        done = site.install("--key-file", f"/root/keys/{name}")
        assert (done.returncode, name) == (3, name), done.stderr
        assert words in done.stderr
        assert (content.decode(errors="replace").strip() or "nothing") not in done.stdout + done.stderr
        assert site.plane.key not in done.stdout + done.stderr
    # The same key, given in the other way.
    done = site.install(env={"HETEROFLEET_API_KEY": "another-key-0123456789"})
    assert (done.returncode, "refuses the key" in done.stderr) == (3, True)
    assert changed(before, snapshot(site.node, times=True)) == []
    site.node.run(["rm", "-r", "/root/keys"])


def test_no_other_script_touches_anything_with_a_wrong_key(site: Site) -> None:
    others = [name for name in SCRIPTS if name not in ("install-agent.sh", "uninstall-agent.sh")]
    for name in others:
        site.node.run(["curl", "-fsSLo", f"/root/other/{name}", "--create-dirs", f"{site.plane.url}/{name}"])
    site.node.put("/root/other/wrong", "another-key-0123456789\n", 0o600)
    site.node.put("/root/other/crlf", f"{site.plane.key}\r\n", 0o600)
    bare = snapshot(site.node, times=True)
    for name in others:
        for key in ("wrong", "crlf"):
            done = site.node.run(
                ["sh", f"/root/other/{name}", "--yes", "--key-file", f"/root/other/{key}"], check=False
            )
            # An update has nothing to do where no agent is, whatever the key.
            assert (done.returncode, name) == (5 if name == "update-agent-quick.sh" else 3, name), done.stderr
    assert changed(bare, snapshot(site.node, times=True)) == []

    assert site.install("--key-file", KEY).returncode == 0
    pid = site.property("MainPID")
    before = without_state(snapshot(site.node))
    for name in others:
        done = site.node.run(["sh", f"/root/other/{name}", "--yes", "--key-file", "/root/other/wrong"], check=False)
        assert (done.returncode, name) == (3, name), done.stderr
    assert changed(before, without_state(snapshot(site.node))) == []
    assert site.property("MainPID") == pid
    site.node.run(["rm", "-r", "/root/other"])


def test_a_key_file_that_cannot_be_read_is_named_and_touches_nothing(site: Site) -> None:
    site.node.sh("mkdir /root/folder; ln -s /nowhere /root/dangling")
    try:
        before = snapshot(site.node, times=True)
        for file, words in {
            "/root/nothing": "No such file or directory",
            "/root/folder": "Is a directory",
            "/root/dangling": "No such file or directory",
            "/proc/self/mem": "Input/output error",
        }.items():
            done = site.install("--key-file", file)
            assert (done.returncode, done.stdout) == (2, ""), done.stderr
            assert f"cannot read the key file {file}: {words}" in done.stderr
        assert changed(before, snapshot(site.node, times=True)) == []
    finally:
        site.node.run(["rm", "-r", "/root/folder", "/root/dangling"])


def test_a_key_that_others_can_read_is_warned_of(site: Site) -> None:
    site.node.run(["chmod", "0644", KEY])
    done = site.install("--key-file", KEY, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"warning: others can reach the key in {KEY} (mode 644); wanted 600" in done.stderr


@pytest.mark.parametrize("installed", [False, True], ids=["bare node", "an agent is there"])
def test_a_key_refused_at_its_second_use_is_taken_back_with_3(site: Site, installed: bool) -> None:
    if installed:
        assert site.install("--key-file", KEY).returncode == 0
    with front(site.plane.url) as door:
        refused_by(site, door)
        before = without_state(snapshot(site.node))
        done = site.install("--key-file", KEY, "--server", door.url, timeout=60)
        assert done.returncode == 3, done.stderr
        assert "the control plane refuses the key: bad_api_key (401)" in done.stderr
        assert door.paths()[0] == "/api/v1/agent/preflight" and HEARTBEAT in door.paths()
    assert changed(before, without_state(snapshot(site.node))) == []
    if installed:
        # Confirmed by the right control plane again, with the settings from before.
        assert site.node.run(["heterofleet-agent", "status", "--wait", "30"], check=False).returncode == 0
        assert site.status()["server_url"] == site.plane.url
    else:
        assert site.property("LoadState") == "not-found"


def without_state(lines: list[str]) -> list[str]:
    """Without the state folder, in which an agent that runs writes; only its being there counts."""
    return [line for line in lines if not line.startswith("/var/lib/heterofleet/agent/")]


def test_the_key_is_never_an_argument_nor_in_the_environment_of_a_child(site: Site) -> None:
    trace = ["strace", "-f", "-e", "trace=execve", "-v", "-s", "200000", "-o", "/root/trace"]
    try:
        done = site.node.run(
            [*trace, "sh", SCRIPT, "--dry-run"], env={"HETEROFLEET_API_KEY": site.plane.key}, check=False
        )
        assert done.returncode == 0, done.stderr
        calls = site.node.get("/root/trace").decode(errors="replace").splitlines()
        # The shell itself was started with it; from the preflight on nothing is.
        with_key = [line for line in calls if site.plane.key in line]
        assert calls and all("preflight" not in line for line in with_key), with_key[-1][:200]
        assert not [line for line in with_key if site.plane.key in line.partition("], ")[0]]
    finally:
        site.node.run(["rm", "-f", "/root/trace"])
