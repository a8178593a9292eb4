"""The script that does everything: on a real node, from a mirror, and its way to an engine with stubbed tools."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.artifacts.publish import publish
from runtime.artifacts.scripts import script
from tests.integration.distribution.front import Answer, front
from tests.integration.distribution.site import KEY, Site, changed, snapshot
from tests.integration.distribution.updating import release

NAME = "deploy-agent-all-in-one.sh"


def test_through_a_pipe_on_a_bare_node_and_again(site: Site) -> None:
    node, url = site.node, site.plane.url
    words = f"sh -s -- --key-file {KEY} --label site=lab"
    done = node.run(["sh", "-c", f"curl -fsSL {url}/{NAME} | {words}"], check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    name = site.status()["node_id"]
    assert f"node {name} is registered" in done.stdout
    said = done.stdout[done.stdout.index("is registered") :]
    for fact in (url, "engine   ", "nvidia: found", "release  0.1.0-"):
        assert fact in said
    assert "the doctor looks at this machine" in done.stdout
    pid = site.property("MainPID")
    again = node.run(["sh", "-c", f"curl -fsSL {url}/{NAME} | sh"], check=False, timeout=150)
    assert again.returncode == 0, again.stderr
    assert "is there already" in again.stdout
    assert site.property("MainPID") == pid


def test_from_a_mirror_that_knows_no_control_plane(site: Site, tmp_path: Path) -> None:
    with front(site.plane.url, offset=8) as mirror:
        publish(site.plane.builds_dir, tmp_path / "tree", progress=print, mirror_url=mirror.url)
        for path in (tmp_path / "tree").rglob("*"):
            if path.is_file():
                mirror.answers["/" + str(path.relative_to(tmp_path / "tree"))] = Answer(200, path.read_bytes())
        site.node.run(["curl", "-fsSLo", f"/root/{NAME}", f"{mirror.url}/{NAME}"])
        done = site.node.run(["sh", f"/root/{NAME}", "--key-file", KEY], check=False)
        assert done.returncode == 2, done.stderr
        assert "no control plane: give --server URL" in done.stderr
        words = ["--key-file", KEY, "--server", site.plane.url, "--no-start"]
        done = site.node.run(["sh", f"/root/{NAME}", *words], check=False, timeout=150)
        assert done.returncode == 0, done.stderr
        assert f"release  {release(site.plane.builds_dir)} of {mirror.url}" in done.stdout
        assert [path for path in mirror.paths() if path.startswith("/static/agent/heterofleet-agent-amd64")]
        assert all("x-api-key" not in one.headers for one in mirror.seen)


def test_an_engine_that_does_not_answer_is_left_alone(site: Site) -> None:
    site.node.run(["curl", "-fsSLo", f"/root/{NAME}", f"{site.plane.url}/{NAME}"])
    before = snapshot(site.node)
    site.node.stop_engine()
    try:
        done = site.node.run(["sh", f"/root/{NAME}", "--key-file", KEY, "--with-docker"], check=False)
        assert done.returncode == 5, done.stderr
        assert "Docker is installed here and does not answer" in done.stderr
        assert site.node.run(["systemctl", "is-active", "docker"], check=False).stdout.strip() != "active"
    finally:
        site.node.start_engine()
    # The engine's own runtime files come and go with it.
    assert [line for line in changed(before, snapshot(site.node)) if "docker" not in line] == []


def test_what_the_doctor_finds_wrong_is_taken_back(site: Site) -> None:
    site.node.run(["curl", "-fsSLo", "/root/one", f"{site.plane.url}/{NAME}"])
    # What the doctor says is decided in its own tests: here it says 2.
    site.node.sh("sed 's/^    agent \"$CURRENT\" doctor --config .*/    (exit 2)/' /root/one >/root/two")
    before = snapshot(site.node)
    done = site.node.run(["sh", "/root/two", "--key-file", KEY], check=False, timeout=150)
    assert done.returncode == 8, done.stderr
    assert "the doctor found something" in done.stderr
    assert changed(before, snapshot(site.node)) == []


STUB = """#!/bin/sh
echo "$(basename $0) $*" >>{log}
case "$(basename $0) $*" in
{answers}
esac
exit 0
"""


TOLD = '{ [ "$2" = "$ASK_ENGINE" ] || return 0; [ -e @/answers ] && echo 27.1; }'


def engine(
    tmp_path: Path, tools: dict[str, str], words: str, dry_run: str = "no", python: str = TOLD
) -> subprocess.CompletedProcess[str]:
    """The part of the script that cares for the engine, with nothing on PATH but these tools.

    ``tools``: name -> cases of its command line; a tool that makes the engine answer makes the file ``answers``.
    ``python``: what the node's Python does when it is asked for the engine.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "log").touch()
    for name, answers in tools.items():
        text = STUB.format(log=tmp_path / "log", answers=answers.replace("@", str(tmp_path)))
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    for name in ("basename", "cat", "grep", "sleep", "sh", "rm", "touch"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    functions = script(NAME, "http://198.18.0.1:3333").rpartition('main "$@"')[0]
    # The engine itself, and what systemd knows of it, are told here.
    told = f"""
        PYTHON=python_of_the_node DOCKER_SOCKET={tmp_path}/no.sock WITH_DOCKER={words} DRY_RUN={dry_run}
        python_of_the_node() {python.replace("@/", f"{tmp_path}/")}
        PATH={folder}
        need_engine
        echo "ENGINE=$ENGINE $ENGINE_VERSION"
    """
    return subprocess.run(
        ["dash", "-c", f"{functions}\n{told}\n}}"], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )


NO_UNIT = '"systemctl show"*docker.service) echo not-found ;;'
STARTS = NO_UNIT + '\n"systemctl enable"*docker.service) touch @/answers ;;'


@pytest.mark.parametrize(
    ("manager", "answers", "installs"),
    [
        ("apt-get", {"apt-cache": '"apt-cache show docker.io") echo Package: docker.io ;;'}, "docker.io"),
        (
            "apt-get",
            {"apt-cache": '"apt-cache show docker-ce"|"apt-cache show docker.io") echo Package: it ;;'},
            "docker-ce docker-ce-cli containerd.io",
        ),
        ("dnf", {"dnf": '*"list moby-engine") echo moby-engine.x86_64 24 fedora ;;'}, "moby-engine"),
        ("yum", {"yum": '*"list docker") echo docker.x86_64 25 amzn2 ;;'}, "docker"),
        ("zypper", {"zypper": '*"search --match-exact docker") exit 0 ;;\n*search*) exit 104 ;;'}, "docker"),
    ],
)
def test_the_engine_of_the_distribution(tmp_path: Path, manager: str, answers: dict[str, str], installs: str) -> None:
    tools = {manager: "", "systemctl": STARTS, **answers}
    done = engine(tmp_path, tools, "yes")
    log = (tmp_path / "log").read_text()
    assert done.returncode == 0, done.stderr + log
    assert "ENGINE=answers 27.1" in done.stdout
    assert [line.endswith(f" {installs}") for line in log.splitlines() if " install " in line] == [True]
    assert "daemon.json" not in log


@pytest.mark.parametrize(
    ("tools", "words", "code", "said"),
    [
        ({"systemctl": NO_UNIT}, "no", 5, "run this again with --with-docker"),
        ({"systemctl": NO_UNIT}, "yes", 5, "no package of this distribution brings Docker Engine"),
        ({"systemctl": '"systemctl show"*) echo loaded ;;'}, "yes", 5, "does not answer on"),
        ({"systemctl": NO_UNIT, "dockerd": ""}, "yes", 5, "does not answer on"),
        # A shim that only claims to be docker is no engine.
        ({"systemctl": NO_UNIT, "dnf": '*"list docker") echo podman-docker.noarch 5 el9 ;;'}, "yes", 5, "no package"),
        ({"systemctl": NO_UNIT, "yum": '*"list docker") echo docker.x86_64 ;;\n*install*) exit 1 ;;'}, "yes", 8, "yum"),
    ],
)
def test_no_engine(tmp_path: Path, tools: dict[str, str], words: str, code: int, said: str) -> None:
    done = engine(tmp_path, tools, words)
    assert done.returncode == code, done.stdout
    assert said in done.stderr


@pytest.mark.parametrize(
    ("listens", "said"), [(False, "run this again with --with-docker"), (True, "does not answer on")]
)
def test_a_socket_that_a_removed_engine_left(tmp_path: Path, listens: bool, said: str) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "no.sock"))
        if listens:  # and never answers
            left.listen()
        done = engine(tmp_path, {"systemctl": NO_UNIT}, "no", python=f'{{ "{sys.executable}" "$@"; }}')
    assert (done.returncode, said in done.stderr) == (5, True), done.stderr


def test_a_dry_run_installs_no_engine(tmp_path: Path) -> None:
    tools = {"systemctl": STARTS, "apt-get": "", "apt-cache": '"apt-cache show docker.io") echo Package: docker.io ;;'}
    done = engine(tmp_path, tools, "yes", "yes")
    assert "dry run: would install docker.io with apt-get" in done.stdout
    assert "install" not in (tmp_path / "log").read_text()
