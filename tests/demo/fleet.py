"""Builds, installation and removal: how the demo's nodes get their agents."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.lab import Lab, LabError, Node, places
from tests.lab.control_plane import HETEROFLEET, ControlPlane
from tests.lab.process import Progress, run, wait_for

ROOT = Path(__file__).resolve().parents[2]
BUILDS_KEPT = 6
SOURCES = ("runtime/protocol", "runtime/agent", "runtime/artifacts", "setup.cfg", "templates")


def sources_digest() -> str:
    """What the agent's build depends on: the commit, and every source file as it lies there now."""
    digest = hashlib.sha256()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    digest.update(commit.stdout.encode())
    for name in SOURCES:
        place = ROOT / name
        files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
        for path in files:
            if "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def agent_builds(progress: Progress, arches: tuple[str, ...] = ("amd64",)) -> Path:
    """The folder with agent builds of these sources; built once and kept in the lab's cache."""
    folder = places.cache() / "builds" / f"{sources_digest()}-{'-'.join(arches)}"
    if (folder / "manifest.json").exists():
        return folder
    former = sorted((places.cache() / "builds").glob("*"), key=lambda old: old.stat().st_mtime)
    for old in former[:-BUILDS_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    places.make_folder(folder.parent)
    words = [HETEROFLEET, "artifacts", "build", "--out", str(folder)]
    for arch in arches:
        words += ["--arch", arch]
    dirty = run(["git", "status", "--porcelain"], cwd=ROOT, check=False).stdout.strip()
    if dirty:
        words.append("--allow-dirty")
    with progress.step(f"agent build for {', '.join(arches)}" + (" (from a changed tree)" if dirty else "")):
        run(words, cwd=ROOT, timeout=900)
    return folder


def publish_builds(plane: ControlPlane, builds: Path) -> None:
    """Put the builds where the control plane serves them from."""
    shutil.copytree(builds, plane.builds_dir, dirs_exist_ok=True)


def install(plane: ControlPlane, node: Node, url: str | None = None) -> str:
    """The documented way: fetch the script, look at it if you like, run it with the key in a file. ``url``: where the
    node reaches the control plane, when not at its own address."""
    node.put("/root/heterofleet-key", plane.key, 0o600)
    node.run(["curl", "-fsSLo", "/root/install-agent.sh", f"{url or plane.url}/install-agent.sh"])
    done = node.run(
        ["sh", "/root/install-agent.sh", "--key-file", "/root/heterofleet-key", "--yes"], timeout=180, check=False
    )
    node.run(["rm", "-f", "/root/heterofleet-key"])
    if done.returncode != 0:
        raise LabError(f"{node.name}: install-agent.sh ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def refused_with_wrong_key(plane: ControlPlane, node: Node) -> int:
    """The key is checked before anything is touched; the script's exit code."""
    node.put("/root/wrong-key", "not-the-key-of-this-fleet-0123", 0o600)
    node.run(["curl", "-fsSLo", "/root/install-agent.sh", f"{plane.url}/install-agent.sh"])
    done = node.run(["sh", "/root/install-agent.sh", "--key-file", "/root/wrong-key", "--yes"], check=False)
    node.run(["rm", "-f", "/root/wrong-key"])
    if node.run(["test", "-e", "/opt/heterofleet"], check=False).returncode == 0:
        raise LabError(f"{node.name}: a wrong key left /opt/heterofleet behind")
    return done.returncode


def install_everywhere(plane: ControlPlane, lab: Lab, progress: Progress) -> None:
    def one(node: Node) -> None:
        with progress.step(f"{node.name}: install-agent.sh"):
            install(plane, node)

    with ThreadPoolExecutor(len(lab.nodes)) as pool:
        list(pool.map(one, lab.nodes))


def end_former_tasks(plane: ControlPlane) -> int:
    """Stop what an earlier run left running, so that its cards are free again; how many there were."""
    alive = plane.get("/api/v1/tasks?status=pending,scheduled,running,sleeping&limit=1000")["tasks"]
    for task in alive:
        plane.request("POST", f"/api/v1/tasks/{task['id']}/stop")

    def probe() -> object:
        left = plane.get("/api/v1/tasks?status=pending,scheduled,running,sleeping&limit=1000")["tasks"]
        return not left or f"{len(left)} still there"

    wait_for("the tasks of an earlier run have ended", probe, 60, 0.25)
    return len(alive)


def remove_foreign_containers(lab: Lab) -> None:
    """Remove task containers of control planes that are gone: nobody else would, and they hold cards."""
    for node in lab.nodes:
        node.sh(
            'old=$(docker ps -aq --filter label=heterofleet.task); [ -z "$old" ] || docker rm -f -v $old >/dev/null'
        )


def wait_online(plane: ControlPlane, count: int, cards: int = 0) -> None:
    """All nodes online with their engines and cards, as the API says."""

    def probe() -> object:
        nodes = plane.get("/api/v1/nodes")["nodes"]
        good = [
            node
            for node in nodes
            if node["state"] == "online"
            and (node["docker"] or {}).get("available")
            and len(node["gpus"] or []) >= cards
        ]
        return len(good) >= count or f"{len(good)} of {count} online with {cards} cards each"

    wait_for("the fleet is online", probe, 60, 0.25, hint=f"Read {plane.log}.")
