"""Secrets of this run, looked for everywhere while the main job runs and after it.

Marked are the system key, the operator's token, a registry password (right, and one that is refused) and a value of
a task's variable. Through an install, a private image, refused pulls, a failed start, a stopped task, a killed agent
and refused requests, with logs at their wordiest, all processes of machine and node are watched (every 20 ms, and
each exec as the kernel's process connector tells of it); then logs, journals, databases with their write-ahead logs,
state folders, temporary folders, home folders, Docker's own files and all that was answered are searched, in plain,
URL form, hex and base64 at each of its three alignments. What may hold a marker is in ALLOWED_* below, and nothing
else may.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shlex
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.demo import fleet as installing
from tests.lab import Node
from tests.lab.control_plane import HETEROFLEET
from tests.lab.markers import Search, new_marker
from tests.lab.process import wait_for
from tests.lab.watch import Seen, Thoroughness, Watch

UNIT = "heterofleet-agent.service"
DROP_IN = f"/etc/systemd/system/{UNIT}.d/verbose.conf"
CONFIG = "/etc/heterofleet/agent.yaml"
KEY_FILE = "/etc/heterofleet/agent.key"

ALLOWED_ON_NODE = {
    # The agent's own copy of the key, for root alone.
    ("system key", KEY_FILE),
    # The engine's record of its containers; what was deleted from it stays in free pages until they are used again.
    ("env value", "/var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db"),
}
ALLOWED_WHILE_IT_RUNS = (
    # The container's own configuration is where its variables belong: the engine's record of it, and the runtime's.
    ("env value", re.compile(r"/var/lib/docker/containers/[0-9a-f]{64}/config\.v2\.json")),
    ("env value", re.compile(r"/run/.*/[0-9a-f]{64}/(config\.json|init\.pid|.*state\.json)")),
)
IN_A_CONTAINER = re.compile(r"/engine/[0-9a-f]{64}")
"""The control group of a container of the node's own engine: its processes have the task's variables."""
NOT_SEARCHED = ("/proc", "/sys", "/dev", "/var/lib/docker/overlay2")
"""Views of processes (watched), and the layers of images, which the engine does not write to."""


@dataclass
class Story:
    """What happened, and everything that it left to be searched."""

    markers: dict[str, str]
    search: Search
    seen: list[Seen] = field(default_factory=list)
    thoroughness: Thoroughness | None = None
    began: float = 0.0
    texts: list[tuple[str, bytes]] = field(default_factory=list)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    on_node_while_running: list[tuple[str, str]] = field(default_factory=list)
    on_node_after: list[tuple[str, str]] = field(default_factory=list)
    container_env: list[str] = field(default_factory=list)
    key_mode: str = ""


def keep(story: Story, where: str, text: str | bytes) -> None:
    story.texts.append((where, text if isinstance(text, bytes) else text.encode()))


def cli(story: Story, fleet: Any, *words: str) -> int:
    """The command line with the token in a file, at its wordiest; its words are searched too."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HETEROFLEET_")}
    done = subprocess.run(
        [HETEROFLEET, "-vvv", "--server", fleet.plane.url, "--token-file", str(fleet.plane.token_file), *words],
        capture_output=True,
        env=environ,
        timeout=120,
    )
    keep(story, f"heterofleet {words[0]} {words[1]}", done.stdout + b"\n" + done.stderr)
    assert b"DEBUG" in done.stderr or done.returncode != 0, "the command was not at its wordiest"
    return done.returncode


def ask(story: Story, fleet: Any, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    status, answer = fleet.plane.request(method, path, body)
    keep(story, f"{method} {path}", json.dumps(answer))
    return status, answer


def search_node(node: Node, search: Search, since: float) -> list[tuple[str, str]]:
    """(path, name of the marker) of every file on the node that was changed since then and holds one."""
    prune = " -o ".join(f"-path {place}" for place in NOT_SEARCHED)
    find = f"find / \\( {prune} \\) -prune -o -type f -newerct @{since:.0f} -print0"
    node.put("/dev/shm/patterns", "\n".join(search.patterns), 0o600)
    listed = node.sh(f"{find} | xargs -0 -r grep -laF -f /dev/shm/patterns -s -- || true; rm -f /dev/shm/patterns")
    found = []
    for path in listed.splitlines():
        if path == "/dev/shm/patterns":
            continue
        read = node.run(["cat", path], check=False).stdout.encode()
        found += [(path, name) for name in sorted({hit.secret for hit in search.look(path, read)})] or [(path, "?")]
    return found


def words_of_the_node(story: Story, node: Node) -> None:
    """What the node says about itself: its whole journal (which is packed on disk), and the agent's commands."""
    keep(story, "the node's journal", node.run(["journalctl", "--no-pager", "-a", "-o", "export"]).stdout)
    for words in (
        ["status"],
        ["status", "--json"],
        ["config", "--config", CONFIG],
        ["inventory"],
        ["doctor", "--json"],
    ):
        done = node.run(["/opt/heterofleet/current/heterofleet-agent", *words], check=False)
        keep(story, f"heterofleet-agent {words[0]}", done.stdout + done.stderr)
    keep(story, "docker info", node.docker("info").stdout)


def verbose_agent(node: Node) -> None:
    run = f"/opt/heterofleet/current/heterofleet-agent run --config {CONFIG} -vvv"
    node.put(DROP_IN, f"[Service]\nExecStart=\nExecStart={run}\n")
    node.run(["systemctl", "daemon-reload"])
    node.run(["systemctl", "restart", UNIT])


def play(story: Story, fleet: Any, node: Node, folder: Path) -> None:
    plane, registry = fleet.plane, fleet.lab.registry
    plane.run_options = ("-vvv",)
    plane.stop()
    plane.start()
    node.run(["curl", "-fsSLo", "/root/uninstall-agent.sh", f"{plane.url}/uninstall-agent.sh"])
    keep(story, "uninstall-agent.sh", node.run(["sh", "/root/uninstall-agent.sh", "--yes"], check=False).stdout)
    keep(story, "install-agent.sh", installing.install(plane, node))
    verbose_agent(node)
    wait_for(
        "the agent is back",
        lambda: (
            plane.get(f"/api/v1/nodes/{node.name}")["state"] == "online"
            and (plane.get(f"/api/v1/nodes/{node.name}")["docker"] or {}).get("available")
        ),
        60,
        0.2,
    )
    image = registry.push_files(f"{registry.address}/lab/marked:1", {"etc/marked": "only with a login\n"})

    def submit(name: str, *command: str, **more: Any) -> None:
        spec = {
            "id": name,
            "name": name,
            "node_id": node.name,
            "image": image,
            "command": list(command),
            "env": {
                "SERVICE_TOKEN": story.markers["env value"],
                "SUPER_SEKRET": story.markers["env value"],
                "DB_URL": f"postgres://u:{story.markers['env value']}@h/x",
                "MODE": "test",
            },
            "registry_auth": {
                "server": registry.address,
                "username": registry.user,
                "password": story.markers["registry password"],
            },
            **more,
        }
        file = folder / f"{name}.json"
        file.write_text(json.dumps(spec))
        assert cli(story, fleet, "tasks", "run", "-f", str(file)) == 0

    submit("marked-main", "forever")
    fleet.wait("marked-main", "running")
    refused = {
        "server": registry.address,
        "username": registry.user,
        "password": story.markers["refused password"],
    }
    missing = f"{registry.address}/lab/never-pushed:1"
    submit("marked-refused", "exit", "0", registry_auth=refused, image=f"{registry.address}/lab/secret-of-others:1")
    submit("marked-missing", "exit", "0", image=missing)
    submit("marked-broken", "exit", "0", entrypoint=["/no/such/program"])
    for name in ("marked-refused", "marked-missing", "marked-broken"):
        story.tasks[name] = fleet.wait(name, "ended", 90)
    container = "task-marked-main"
    inspected = json.loads(node.docker("inspect", container).stdout)[0]
    story.container_env = inspected["Config"]["Env"]
    story.on_node_while_running = search_node(node, story.search, story.began)
    node.run(["systemctl", "kill", "-s", "KILL", UNIT])
    node.run(["systemctl", "restart", UNIT])
    wait_for(
        "the restarted agent holds the task",
        lambda: (
            "marked-main"
            in node.run(["/opt/heterofleet/current/heterofleet-agent", "status", "--json"], check=False).stdout
        ),
        60,
        0.2,
    )
    refused_requests(story, fleet)
    for words in (
        ("tasks", "show", "marked-main"),
        ("tasks", "why", "marked-main"),
        ("tasks", "list"),
        ("events", "--limit", "500"),
    ):
        cli(story, fleet, *words)
    assert cli(story, fleet, "tasks", "stop", "marked-main") == 0
    story.tasks["marked-main"] = fleet.wait("marked-main", "ended")
    gone = lambda: not node.docker("ps", "-aq", "--filter", "label=heterofleet.task=marked-main").stdout.strip()  # noqa: E731
    wait_for("the container is removed", gone, 30, 0.2)


def refused_requests(story: Story, fleet: Any) -> None:
    """Bodies with a mistake in them, and calls without the right to them."""
    secret = story.markers["env value"]
    path = "/api/v1/tasks"
    status, _ = ask(story, fleet, "POST", path, {"name": "x", "image": "a:1", "env": {"1X": secret}, "imagee": 1})
    assert status == 422
    login = {"server": fleet.lab.registry.address, "username": 5, "password": story.markers["registry password"]}
    assert ask(story, fleet, "POST", path, {"name": "x", "image": "a:1", "registry_auth": login})[0] == 422
    assert (
        ask(story, fleet, "POST", path, {"id": "marked-main", "name": "x", "image": "a:1", "env": {"A": secret}})[0]
        == 409
    )
    for what in ("", "/marked-main", "/marked-main/why", "/marked-main/logs", "/marked-refused"):
        assert ask(story, fleet, "GET", path + what)[0] == 200
    for path in ("/api/v1/events?limit=1000", "/api/v1/nodes", "/metrics", "/openapi.json", "/readyz"):
        assert ask(story, fleet, "GET", path)[0] == 200


def after_the_story(story: Story, fleet: Any, node: Node) -> None:
    words_of_the_node(story, node)
    story.on_node_after = search_node(node, story.search, story.began)
    story.key_mode = node.sh(f"stat -c '%a %U' {KEY_FILE}")
    show = [HETEROFLEET, "server", "config", "--config", str(fleet.plane.settings_file)]
    keep(story, "heterofleet server config", subprocess.run(show, capture_output=True, timeout=60).stdout)


@pytest.fixture(scope="module")
def story(fleet: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("the-operators-own-files")
    markers = {
        "system key": fleet.plane.key,  # made anew for this fleet, as the token is
        "operator token": fleet.plane.token_file.read_text().strip(),
        "registry password": fleet.lab.registry.password,
        "refused password": new_marker("pw"),
        "env value": new_marker("env"),
    }
    node = fleet.lab.nodes[0]
    secrets_made = min(file.stat().st_ctime for file in (fleet.plane.key_file, fleet.plane.token_file))
    told = Story(markers, Search(markers), began=secrets_made - 1)
    try:
        with Watch([(name, text) for name in markers for text in Search({name: markers[name]}).patterns]) as watch:
            play(told, fleet, node, folder)
        told.seen, told.thoroughness = watch.seen, watch.thoroughness
        after_the_story(told, fleet, node)
        yield told
    finally:
        node.run(["rm", "-rf", str(Path(DROP_IN).parent), "/root/uninstall-agent.sh"])
        node.run(["systemctl", "daemon-reload"])
        node.run(["systemctl", "restart", UNIT], check=False)
        fleet.plane.run_options = ()
        fleet.plane.stop()
        fleet.plane.start()


@pytest.mark.case("FC-027")
def test_no_process_shows_a_secret_to_others(story: Story) -> None:
    """What happened: a registry's password stood in the arguments of a login, for everybody who lists processes."""
    found = [
        seen
        for seen in story.seen
        # The task's own processes have the task's variables.
        if not (seen.name == "env value" and seen.kind == "environment" and IN_A_CONTAINER.search(seen.cgroups))
    ]
    assert found == []
    assert story.seen, "the watch does not see the task"
    watched = story.thoroughness
    assert watched is not None and watched.rounds > 200 and watched.execs > 200
    assert watched.gone < watched.execs / 2, watched


@pytest.mark.case("FC-027")
def test_nothing_on_the_node_holds_a_secret_but_the_key_file(story: Story) -> None:
    """What happened: a password was left in Docker's configuration, and every later task could use it."""
    found = {(name, path) for path, name in story.on_node_after}
    assert found - ALLOWED_ON_NODE == set()
    assert ("system key", KEY_FILE) in found
    assert story.key_mode == "600 root"


def test_while_the_task_runs_its_container_alone_has_its_variables(story: Story) -> None:
    assert f"SERVICE_TOKEN={story.markers['env value']}" in story.container_env
    assert not any("HETEROFLEET" in variable for variable in story.container_env)
    odd = [
        (path, name)
        for path, name in story.on_node_while_running
        if (name, path) not in ALLOWED_ON_NODE
        and not any(name == which and place.fullmatch(path) for which, place in ALLOWED_WHILE_IT_RUNS)
    ]
    assert odd == []
    assert any(path.endswith("config.v2.json") for path, _ in story.on_node_while_running)


@pytest.mark.case("FC-028")
def test_no_log_and_no_answer_shows_a_secret(story: Story) -> None:
    """What happened: three fields were masked and a fourth was printed, at the level of details only."""
    assert story.search.look_at(story.texts) == []
    journal = next(text for where, text in story.texts if where == "the node's journal")
    assert b"DEBUG runtime.agent" in journal and b"DEBUG urllib3" in journal, "the agent was not at its wordiest"


def test_the_tasks_ended_as_they_should(story: Story) -> None:
    """The story is worth something only when it went the ways that it was meant to go."""
    ends = {name: (task["status"], task["reason"]) for name, task in story.tasks.items()}
    assert ends == {
        "marked-main": ("stopped", "stopped_by_operator"),
        "marked-refused": ("failed", "registry_auth_failed"),
        "marked-missing": ("failed", "image_not_found"),
        "marked-broken": ("failed", "start_failed"),
    }
    assert all(task["error"] for name, task in story.tasks.items() if name != "marked-main")


@pytest.mark.case("FC-069")
def test_the_server_keeps_no_secret_in_plain(fleet: Any, story: Story) -> None:
    """Database, write-ahead log, log file, temporary and home folders of the machine.

    What happened: passwords appeared in what was printed at the level of details.
    """
    plane = fleet.plane
    folders = [plane.folder, plane.log.parent, Path("/var/tmp"), Path("/tmp"), Path.home()]
    ours = {("system key", str(plane.key_file)), ("operator token", str(plane.token_file))}
    login = plane.folder / "registry-auth.json"  # what the operator of the main job gives to its command line
    if login.exists():
        ours.add(("registry password", str(login)))
    files = {path: data for folder in folders for path, data in newer_files(folder, story.began)}
    hits = story.search.look_at((str(path), data) for path, data in files.items())
    assert {(hit.secret, hit.where) for hit in hits} == ours
    assert plane.state_dir / "heterofleet.db" in files and plane.log in files
    assert all(stat.S_IMODE(Path(path).stat().st_mode) == 0o600 for _, path in ours)
    log = plane.log.read_bytes()
    assert b"DEBUG" in log, "the server was not at its wordiest"


def newer_files(folder: Path, since: float) -> Iterator[tuple[Path, bytes]]:
    """Files that were changed since then, and what is in them; no leak of this run is older.

    What tests write for themselves is none: another session may work with the same registry.
    """
    words = ["find", str(folder), "-xdev", "-type", "f"]
    for path in ("*/the-operators-own-files*", "*/pytest-of-*"):
        words += ["-not", "-path", path]
    listed = subprocess.run([*words, "-newerct", f"@{since:.0f}"], capture_output=True, text=True, timeout=60).stdout
    for path in map(Path, listed.splitlines()):
        with contextlib.suppress(FileNotFoundError):  # it was somebody's for a moment
            yield path, path.read_bytes()


def test_a_planted_secret_is_found(fleet: Any, story: Story) -> None:
    """The search is no blind one: on the node and in texts it finds what is there, in each form."""
    secret = story.markers["env value"]
    escaped = secret.replace("/", "%2f").replace("+", "%2b").replace("=", "%3d")
    planted = {
        "/var/tmp/plain": f"x{secret}y".encode(),
        "/tmp/json": json.dumps({"deep": {"down": [secret]}}).encode(),
        "/root/url": f"/?q={escaped}".encode(),
        "/run/hex": secret.encode().hex().encode(),
        "/etc/base64": base64.b64encode(f"user:{secret}!".encode()),
        "/home/base64-for-urls": base64.urlsafe_b64encode(f"users:{secret}!".encode()),
        "/opt/base64": base64.b64encode(f"{secret}!".encode()),
    }
    node = fleet.lab.nodes[0]
    try:
        for path, data in planted.items():
            node.put(path, data)
            assert [hit.secret for hit in story.search.look(path, b"before " + data + b" after")] == ["env value"]
        found = {path for path, name in search_node(node, story.search, story.began) if name == "env value"}
        assert set(planted) <= found
    finally:
        node.run(["rm", "-f", *planted])


@pytest.mark.parametrize("where", ["args", "environment"])
def test_a_planted_process_is_seen(fleet: Any, where: str) -> None:
    """A process of the node that shows a secret for a moment, and one of the machine."""
    secret = new_marker("planted")
    node = fleet.lab.nodes[0]
    planted = f"true {shlex.quote(secret)}" if where == "args" else f"A={shlex.quote(secret)} true"
    # The shell that starts it must not show it itself.
    script = f"for n in 1 2 3 4 5 6 7 8 9 10; do env {planted}; done"
    with Watch([("planted", secret)]) as watch:
        node.run(["sh"], input=script)
        subprocess.run(["sh"], input=script, text=True, check=True)
    kinds = {(seen.kind, "/docker/" in seen.cgroups) for seen in watch.seen}
    assert {(where, True), (where, False)} <= kinds
