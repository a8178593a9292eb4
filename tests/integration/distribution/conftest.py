"""Real builds of the sources as they lie there, made once a session; a control plane that hands them out."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import waitress

from runtime.artifacts.build import build
from runtime.protocol.manifest import ARCHITECTURES
from runtime.server.app import assemble
from runtime.server.parts import build_parts
from runtime.server.settings import ServerSettings
from tests.integration.distribution.site import KEY as KEY_FILE
from tests.integration.distribution.site import SCRIPT, Site
from tests.integration.distribution.updating import make_kinds
from tests.lab import Lab, Node, places
from tests.lab.control_plane import ControlPlane
from tests.lab.fixtures import *  # noqa: F403

ROOT = Path(__file__).resolve().parents[3]
INPUTS = ("setup.cfg", "runtime", "templates")
KEY = "k3y-of-the-distribution-tests"


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def checkout(folder: Path) -> Path:
    """A clean checkout of the sources as they lie in the working tree, with a commit of fixed time."""
    folder.mkdir(parents=True)
    for name in INPUTS:
        place = ROOT / name
        if place.is_dir():
            shutil.copytree(place, folder / name, ignore=shutil.ignore_patterns("__pycache__", "_build.json"))
        else:
            shutil.copy(place, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    # A fixed author and time, so that two checkouts of the same files have the same commit.
    when = "2026-01-02T03:04:05Z"
    subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=test", "-c", "user.email=test@localhost"]
        + ["-c", "commit.gpgsign=false", "commit", "--quiet", "--message", "as it is"],
        check=True,
        env={"PATH": "/usr/bin:/bin", "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when, "HOME": "/nonexistent"},
    )
    return folder


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clean checkout that ``builds`` were made from."""
    return checkout(tmp_path_factory.mktemp("sources") / "tree")


@pytest.fixture(scope="session")
def builds(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both architectures and their manifest."""
    out = tmp_path_factory.mktemp("builds")
    build(sources, out, ARCHITECTURES, allow_dirty=False, progress=print)
    return out


@pytest.fixture(scope="session")
def kinds(sources: Path, builds: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind of build (see updating.KINDS, and "first" for ``builds``) -> its folder."""
    return {"first": builds, **make_kinds(sources, tmp_path_factory.mktemp("kinds"))}


@dataclass
class Served:
    """A control plane in this process: its address and the folder that it hands builds out of."""

    url: str
    folder: Path


@pytest.fixture(scope="session")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    base = tmp_path_factory.mktemp("server")
    (base / "state").mkdir()
    folder = base / "builds"
    parts = build_parts(ServerSettings(api_key=KEY, state_dir=str(base / "state"), builds_dir=str(folder)))
    parts.start()
    server = waitress.create_server(assemble(parts), host="127.0.0.1", port=0, threads=4)
    # A connection that a failed test still holds would keep the loop going.
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield Served(f"http://127.0.0.1:{server.effective_port}", folder)
    server.close()
    thread.join(10)
    parts.stop()


@pytest.fixture
def served(_server: Served, builds: Path) -> Served:
    """The control plane, with good builds in its folder whatever the test before did to them."""
    shutil.rmtree(_server.folder, ignore_errors=True)
    shutil.copytree(builds, _server.folder)
    return _server


@pytest.fixture(scope="package")
def plane(lab: Lab, builds: Path) -> Iterator[ControlPlane]:
    """A control plane that the nodes reach, with both builds."""
    made = ControlPlane(
        "distribution",
        listen=f"{places.HOST_ADDRESS}:{places.port(2)}",
        doorbell=f"{places.HOST_ADDRESS}:{places.port(3)}",
    )
    made.remove()
    made.start()
    shutil.copytree(builds, made.builds_dir, dirs_exist_ok=True)
    yield made
    made.remove()


@pytest.fixture
def site(plane: ControlPlane, node: Node) -> Iterator[Site]:
    """The node without an agent before and after; script and key lie on it."""
    made = Site(node, plane)
    made.uninstall("--purge", "--yes")
    node.sh("docker ps -aq --filter label=heterofleet.task | xargs -r docker rm -f")
    node.put(KEY_FILE, plane.key, 0o600)
    node.run(["curl", "-fsSLo", SCRIPT, f"{plane.url}/install-agent.sh"])
    yield made
    made.uninstall("--purge", "--yes")
