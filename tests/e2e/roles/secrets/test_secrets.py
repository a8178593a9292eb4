"""A deploy by the command at its wordiest, with differences shown, while every process of controller and node is
watched.

Marked are the system key, the operator's token and the login of a proxy that the agent has to go through. They are
looked for, in plain, in hex, in URL form and in base64 at each of its alignments, in what was printed, in
ansible-runner's folder while it is at work, in arguments and environments (every 20 ms, and each exec), in the journal
and all files of the node, in temporary and home folders of the controller, and in what the control plane wrote down.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.roles.ansible import Fleet
from tests.e2e.roles.bare import make_bare, publish
from tests.e2e.roles.builds import Builds
from tests.e2e.roles.secrets.forwarder import Forwarder
from tests.e2e.test_markers import search_node
from tests.lab import Lab, Node, places
from tests.lab.control_plane import HETEROFLEET, ControlPlane
from tests.lab.markers import Hit, Search, new_marker
from tests.lab.watch import Seen, Thoroughness, Watch

pytestmark = pytest.mark.timeout(900)

KEY_FILE = "/etc/heterofleet/agent.key"
SETTINGS = "/etc/heterofleet/agent.yaml"
ANSIBLES_OWN = re.compile(r"/fleet-[^/]+/tmp/ansible-local-")
"""Where Ansible's copy lays down what it sends, while it sends it: for this user alone, and inside the run's folder."""
LOOK_S = 0.5
"""How often the run's folder is read while it is at work: its files stand there for seconds."""


@dataclass
class Story:
    search: Search
    began: float
    rc: int = -1
    out: str = ""
    err: str = ""
    seen: list[Seen] = field(default_factory=list)
    thoroughness: Thoroughness | None = None
    folder_hits: list[Hit] = field(default_factory=list)
    folder_files: set[str] = field(default_factory=set)
    sent: list[tuple[str, int]] = field(default_factory=list)
    folder_left: list[Path] = field(default_factory=list)
    on_node: list[tuple[str, str]] = field(default_factory=list)
    node_modes: dict[str, str] = field(default_factory=dict)
    journal: bytes = b""
    on_controller: list[str] = field(default_factory=list)
    proxied: int = 0


class FolderWatch:
    """Reads the run's private folder over and over until ``with`` ends."""

    def __init__(self, folder: Path, story: Story) -> None:
        self._folder, self._story, self._over = folder, story, threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> FolderWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            for path in list(self._folder.rglob("*")):
                with contextlib.suppress(OSError):  # it was there for a moment
                    if path.is_file():
                        self._story.folder_files.add(path.name)
                        hits = list(self._story.search.look(str(path), path.read_bytes()))
                        if hits and ANSIBLES_OWN.search(str(path)):
                            self._story.sent.append((hits[0].secret, stat.S_IMODE(path.stat().st_mode)))
                        else:
                            self._story.folder_hits += hits


def on_controller(search: Search, since: float, folders: list[Path], own: Path) -> list[str]:
    """Files that were changed since then and hold a marker. ``own``: what the test itself wrote for the operator."""
    patterns = own / "patterns"
    places.write_atomically(patterns, "\n".join(search.patterns).encode(), 0o600)
    find = ["find", *map(str, folders), "-xdev", "-path", str(own), "-prune", "-o"]
    find += ["-type", "f", "-newerct", f"@{since:.0f}", "-print0"]
    listed = subprocess.run(find, capture_output=True, timeout=120).stdout
    grep = ["xargs", "-0", "-r", "grep", "-laF", "-s", "-f", str(patterns), "--"]
    found = subprocess.run(grep, input=listed, capture_output=True, timeout=120).stdout.decode().splitlines()
    patterns.unlink()
    return found


@pytest.fixture(scope="module")
def told(lab: Lab, builds: Builds, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    own = tmp_path_factory.mktemp("the-operators-own-files")
    node = lab.nodes[0]
    make_bare([node])
    began = time.time() - 1
    plane = ControlPlane("secrets", listen=f"{places.HOST_ADDRESS}:{places.port(5)}", doorbell="")
    plane.remove()
    plane.run_options = ("-vvv",)
    markers = {"system key": new_marker("key"), "proxy login": new_marker("proxy")}
    places.make_folder(plane.folder, 0o700)
    places.write_atomically(plane.key_file, markers["system key"].encode(), 0o600)
    plane.start()
    publish(plane, builds.first)
    markers["operator token"] = plane.token_file.read_text().strip()
    story = Story(Search(markers), began)
    try:
        with Forwarder(places.HOST_ADDRESS, "hf", markers["proxy login"]) as proxy:
            play(story, node, plane, builds, markers, proxy, own)
            story.proxied = proxy.served
        yield story
    finally:
        plane.remove()
        make_bare([node])


def play(
    story: Story,
    node: Node,
    plane: ControlPlane,
    builds: Builds,
    markers: dict[str, str],
    proxy: Forwarder,
    own: Path,
) -> None:
    home = own.parent / "home-of-the-run"
    home.mkdir(exist_ok=True)
    settings = {"proxy": proxy.url}
    fleet = Fleet(plane, [node], own, fleet_builds_dir=str(builds.first), agent_settings=settings)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HETEROFLEET_", "XDG_"))}
    words = [HETEROFLEET, "fleet", "deploy", "-i", str(fleet.write()), "-vvv", "--diff", "-o", "json"]
    runs = home / ".cache/heterofleet/fleet"
    named = [(name, text) for name in markers for text in Search({name: markers[name]}).patterns]
    with Watch(named) as watch, FolderWatch(runs, story):
        done = subprocess.run(words, capture_output=True, text=True, env={**environ, "HOME": str(home)}, timeout=600)
    story.rc, story.out, story.err = done.returncode, done.stdout, done.stderr
    story.seen, story.thoroughness = watch.seen, watch.thoroughness
    story.folder_left = list(runs.iterdir())
    story.on_node = search_node(node, story.search, story.began)
    for path in {path for path, _ in story.on_node}:
        story.node_modes[path] = node.sh(f"stat -c '%a %U' '{path}'")
    story.journal = node.run(["journalctl", "--no-pager", "-a", "-o", "export"]).stdout.encode()
    folders = [Path("/tmp"), Path("/var/tmp"), Path.home(), home, plane.folder, plane.log.parent]
    story.on_controller = on_controller(story.search, story.began, folders, own)


def test_the_deploy_was_one_and_at_its_wordiest(told: Story) -> None:
    """The search is worth something only when all of it happened."""
    assert told.rc == 0, told.err[-4000:]
    assert [host["outcome"] for host in json.loads(told.out)["hosts"]] == ["changed"]
    assert "EXEC ssh" in told.err or "SSH: EXEC" in told.err, "Ansible was not at its wordiest"
    assert "+++ after" in told.err, "no difference was shown"
    assert told.proxied > 0, "the agent did not go through its proxy"
    assert ("system key", KEY_FILE) in {(name, path) for path, name in told.on_node}, "the search of the node is blind"


def test_no_secret_is_printed(told: Story) -> None:
    assert told.search.look_at([("out", told.out.encode()), ("err", told.err.encode())]) == []


def test_no_secret_is_in_ansible_runners_folder(told: Story) -> None:
    assert {"command", "settings", "variables.json"} <= told.folder_files, "the folder was not looked into"
    assert not {"stdout", "extravars", "envvars", "cmdline"} & told.folder_files
    assert told.folder_hits == []
    # Nor on its way to the node, where Ansible lays down what it copies.
    assert told.sent == []
    assert told.folder_left == []


def test_no_secret_is_in_arguments_or_environment_of_any_process(told: Story) -> None:
    assert told.seen == []
    watched = told.thoroughness
    assert watched is not None
    assert watched.rounds > 200
    assert watched.execs > 200
    assert watched.gone < watched.execs / 2, watched


def test_no_secret_is_in_the_nodes_journal(told: Story) -> None:
    assert told.search.look_at([("journal", told.journal)]) == []
    assert b"heterofleet-agent" in told.journal


def test_on_the_node_the_agents_own_files_alone_hold_secrets(told: Story) -> None:
    """The key's file, and the settings with the proxy's login, in /etc and beside their release; for root alone."""
    odd = [
        (path, name)
        for path, name in told.on_node
        if (name, path) not in {("system key", KEY_FILE), ("proxy login", SETTINGS)}
        and not (
            name == "proxy login" and path.startswith("/opt/heterofleet/releases/") and path.endswith("/agent.yaml")
        )
    ]
    assert odd == []
    assert set(told.node_modes.values()) == {"600 root"}


def test_nothing_on_the_controller_keeps_a_secret(told: Story) -> None:
    """Temporary folders, ~/.ansible and the home of the run, the control plane's log and database; its own two files
    are what was marked."""
    left = [path for path in told.on_controller if Path(path).name not in ("system-key", "operator-token")]
    assert left == []
    assert {Path(path).name for path in told.on_controller} == {"system-key", "operator-token"}
