"""An engine that is there is left alone; one that is missing comes from the host's own sources; lines are merged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.roles.ansible import Fleet, Played
from tests.lab import Lab, Node

FILE = "/etc/docker/daemon.json"
MIRROR = {"registry-mirrors": ["http://198.18.0.1:5001"]}
LOGS = {"log-opts": {"max-size": "10m"}}


@pytest.fixture
def node(lab: Lab) -> Iterator[Node]:
    """A node whose engine and settings are put back as they were."""
    one = lab.nodes[0]
    before = one.get(FILE)
    yield one
    one.sh("docker ps -aq | xargs -r docker rm -f -v >/dev/null")
    one.sh("rm -f /etc/docker/*heterofleet*; systemctl reset-failed docker.service docker.socket")
    if one.get(FILE) != before:
        one.put(FILE, before)
        one.run(["systemctl", "restart", "docker"])


def engine(node: Node, folder: Path, *words: str, check: bool = True, **variables: Any) -> Played:
    return Fleet(None, [node], folder).role("docker_engine", "main", *words, vars=variables, check=check)


def said(played: Played) -> str:
    return " ".join(line for one in played.results("Say what there is", status="ok") for line in one["said"]["msg"])


def at_work(node: Node, container: str) -> str:
    """What a restart of the engine or of the container would change."""
    form = "{{.Id}} {{.State.StartedAt}} {{.State.Pid}} {{.State.Running}}"
    return node.sh("pidof dockerd") + " " + node.docker("inspect", "-f", form, container).stdout.strip()


def lines(node: Node) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(node.get(FILE))
    return made


def test_an_engine_with_a_container_is_left_alone_and_new_lines_wait(node: Node, lab: Lab, tmp_path: Path) -> None:
    lab.load_image([node])
    node.docker("run", "-d", "--name", "held", "--label", "heterofleet.task=t1", lab.task_image, "forever")
    before, file = at_work(node, "held"), node.get(FILE)

    alone = engine(node, tmp_path)
    assert (alone.changed, node.get(FILE), at_work(node, "held")) == ({}, file, before)
    assert "with 1 containers, 1 of them tasks" in said(alone)

    preview = engine(node, tmp_path, "--check", docker_engine_daemon={**MIRROR, **LOGS}, docker_engine_restart=True)
    assert preview.changed and node.get(FILE) == file
    assert "Would change" in said(preview) and "log-opts, registry-mirrors" in said(preview)
    assert "A restart waits for 1 containers (1 tasks run)" in said(preview)

    written = engine(node, tmp_path, docker_engine_daemon=MIRROR)
    assert lines(node) == {**json.loads(file), **MIRROR}
    assert "Pending until the engine is told (docker_engine_restart): registry-mirrors" in said(written)
    assert node.docker("info", "-f", "{{.RegistryConfig.Mirrors}}").stdout.strip() == "[]"

    # Cut there: the next run finds the file right and the engine not. A reload is enough, and ends nothing.
    taken = engine(node, tmp_path, docker_engine_daemon=MIRROR, docker_engine_restart=True)
    assert "took it by a reload" in said(taken)
    assert MIRROR["registry-mirrors"][0] in node.docker("info", "-f", "{{.RegistryConfig.Mirrors}}").stdout
    assert at_work(node, "held") == before

    # What only a restart brings waits for the container.
    waits = engine(node, tmp_path, docker_engine_daemon={**MIRROR, **LOGS}, docker_engine_restart=True)
    assert lines(node)["log-opts"] == LOGS["log-opts"]
    assert "Pending: log-opts. A restart waits for 1 containers" in said(waits)
    assert at_work(node, "held") == before

    node.docker("rm", "-f", "held")
    restarted = engine(node, tmp_path, docker_engine_daemon={**MIRROR, **LOGS}, docker_engine_restart=True)
    assert "took it by a restart" in said(restarted)
    assert node.sh("pidof dockerd") != before.split()[0]
    again = engine(node, tmp_path, docker_engine_daemon={**MIRROR, **LOGS}, docker_engine_restart=True)
    assert again.changed == {}
    assert "heterofleet" not in node.sh("ls -A /etc/docker")


def test_a_password_is_refused_and_not_repeated(node: Node, tmp_path: Path) -> None:
    wanted = {"proxies": {"http-proxy": "http://me:S3cret-marker@proxy:3128"}}
    file = node.get(FILE)
    played = engine(node, tmp_path, check=False, docker_engine_daemon=wanted, docker_engine_restart=True)
    assert played.rc != 0
    assert "a password in a URL" in played.results(host=node.name, status="failed")[-1]["said"]["stderr"]
    assert "S3cret-marker" not in played.output
    assert node.get(FILE) == file


def test_lines_that_the_engine_does_not_start_with_are_taken_back(node: Node, tmp_path: Path) -> None:
    file = node.get(FILE)
    played = engine(
        node, tmp_path, check=False, docker_engine_daemon={"no-such-line": True}, docker_engine_restart=True
    )
    assert played.rc != 0
    reason = played.results(host=node.name, status="failed")[-1]["said"]["stderr"]
    assert "no-such-line" in reason and "was put back, and the engine is at work with it" in reason
    assert node.get(FILE) == file
    assert node.run(["systemctl", "is-active", "docker"]).stdout.strip() == "active"


def test_a_missing_engine_comes_from_the_sources_of_the_host(lab: Lab, tmp_path: Path) -> None:
    """Without sources the words say what was looked for, and nothing is half there."""
    node = lab.nodes[1]
    apart = "/root/apt-apart"
    node.sh(
        "DEBIAN_FRONTEND=noninteractive apt-get -qq -y purge docker.io >/dev/null 2>&1\n"
        f"mkdir {apart}; mv /etc/apt/sources.list* {apart}; rm -rf /var/lib/apt/lists/*"
    )
    try:
        preview = engine(node, tmp_path, "--check")
        assert [task.partition(" : ")[2] for task in preview.changed[node.name]] == ["Install the engine"]
        nowhere = engine(node, tmp_path, check=False)
        assert nowhere.rc != 0
        reason = nowhere.results(host=node.name, status="failed")[-1]["said"]["stderr"]
        assert "looked for docker-ce, docker.io" in reason
    finally:
        node.sh(f"mv {apart}/* /etc/apt/; rmdir {apart}")
    made = engine(node, tmp_path)
    assert said(made).startswith("Installed docker.io.")
    lab.load_image([node])
    assert node.docker("run", "--rm", lab.task_image, "print", "it runs").stdout.strip() == "it runs"
    assert node.run(["systemctl", "is-enabled", "docker"]).stdout.strip() == "enabled"
    assert "198.18.0.1:5000" in lines(node)["insecure-registries"]
