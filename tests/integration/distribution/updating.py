"""A node whose agent supervises five containers, and builds of several kinds to update it to."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from runtime.artifacts.build import build
from runtime.protocol.manifest import read_manifest
from tests.integration.distribution.site import KEY, Site
from tests.lab import Lab
from tests.lab.process import wait_for

OPT, SETTINGS = "/opt/heterofleet", "/etc/heterofleet/agent.yaml"
UNIT_FILE = "/etc/systemd/system/heterofleet-agent.service"
TASKS = tuple(f"kept-{number}" for number in range(5))

_RUN = "def _run(options: argparse.Namespace) -> int:\n"
KINDS = {
    "newer": "",
    "exits": '    print("this build ends at once", file=sys.stderr)\n    return 1\n',
    # Ready for systemd, deaf to its signals, and never heard of by the control plane.
    "silent": (
        "    from runtime.agent.notify import Notifier\n"
        '    Notifier().ready("and says no more")\n'
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    threading.Event().wait()\n"
    ),
}
"""Kind of build -> the lines that its ``run`` begins with."""


def make_kinds(sources: Path, folder: Path) -> dict[str, Path]:
    """Kind -> folder with a build for amd64 and its manifest."""

    def make(kind: str) -> Path:
        tree = folder / kind / "tree"
        shutil.copytree(sources, tree)
        main = tree / "runtime" / "agent" / "main.py"
        text = main.read_text()
        assert text.count(_RUN) == 1
        main.write_text(text.replace(_RUN, _RUN + KINDS[kind]) + f"# {kind}\n")
        identity = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", tree, *identity, "commit", "--quiet", "--all", "--message", kind], check=True)
        build(tree, folder / kind / "out", ("amd64",), allow_dirty=False, progress=print)
        return folder / kind / "out"

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(KINDS, pool.map(make, KINDS), strict=True))


def release(folder: Path) -> str:
    """The name of the release folder that this build gets."""
    return read_manifest(folder).release("amd64")


@dataclass(frozen=True)
class Updating:
    """A node, the control plane that it asks, and ``builds`` by kind."""

    site: Site
    lab: Lab
    builds: dict[str, Path]

    def offer(self, kind: str) -> str:
        """From now on the control plane hands out that build. Returns its release name."""
        folder = self.site.plane.builds_dir
        for path in self.builds[kind].iterdir():
            beside = folder / f".{path.name}.new"
            shutil.copy(path, beside)
            beside.replace(folder / path.name)
        return release(self.builds[kind])

    def script(self, name: str, *words: str, timeout: float = 150) -> subprocess.CompletedProcess[str]:
        """Fetch a script from the control plane, and run it on the node."""
        self.site.node.run(["curl", "-fsSLo", f"/root/{name}", f"{self.site.plane.url}/{name}"])
        return self.site.node.run(["sh", f"/root/{name}", *words], check=False, timeout=timeout)

    def quick(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.script("update-agent-quick.sh", *words)

    def force(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.script("update-agent-force.sh", *words)

    def level(self, kind: str) -> str:
        """The node runs that build, whatever a test before has left. Returns its release name."""
        self.site.node.sh(f"rm -rf {OPT}/*.set-aside-* /etc/heterofleet/*.set-aside-*")
        name = self.offer(kind)
        if self.quick().returncode != 0:
            done = self.force("--key-file", KEY)
            assert done.returncode == 0, done.stderr
        return name

    def pair(self) -> tuple[str, str]:
        """The release that the node runs, and another one, which is on offer now and not on the node yet."""
        names = {release(self.builds[kind]): kind for kind in ("newer", "first")}
        here = self.level(names.get(self.current(), "first"))
        other = self.offer(next(kind for name, kind in names.items() if name != here))
        self.forget(other)
        return here, other

    def forget(self, name: str) -> None:
        """Take a release that does not run off the node, so that it is fetched again."""
        self.site.node.sh(f"rm -rf {OPT}/releases/{name}; rm -f {OPT}/previous")

    def current(self) -> str:
        return self.site.node.run(["readlink", f"{OPT}/current"], check=False).stdout.strip().removeprefix("releases/")

    def installation(self) -> dict[str, str]:
        """What an update that is taken back must leave as it was."""
        node = self.site.node
        texts = {path: node.get(path).decode() for path in (SETTINGS, UNIT_FILE, f"{OPT}/current/agent.yaml")}
        listed = node.sh(f"ls -A {OPT} {OPT}/releases; readlink {OPT}/current {OPT}/previous || :")
        return {**texts, "lists": listed, "enabled": self.site.property("UnitFileState")}

    def runs(self, name: str) -> None:
        """The agent that runs is of this release, and the control plane hears it."""
        status = self.site.status()
        version, _, commit = status["version"].partition("/")
        assert f"{version}-{commit}" == name.rpartition("-")[0]
        assert (status["registered"], str(status["pid"])) == (True, self.site.property("MainPID"))
        assert self.current() == name

    def start_tasks(self) -> None:
        """Five tasks that end when a file appears, the last with exit code 4."""
        self.lab.load_image([self.site.node])
        for number, task in enumerate(TASKS):
            wait = f"until [ -e /tmp/over ]; do sleep 0.2; done; exit {number}"
            body = {"id": task, "name": task, "image": self.lab.task_image, "command": ["sh", "-c", wait]}
            status, answer = self.site.plane.request("POST", "/api/v1/tasks", body)
            assert status == 201, answer
        # A claim is "running" before its container is.
        wait_for("the agent supervises five tasks", lambda: self.supervised() == set(TASKS) or "not yet", 60, 0.2)

    def wait_for_tasks(self, *wanted: str) -> dict[str, dict]:
        found: dict[str, dict] = {}

        def ask() -> object:
            found.update({task: self.site.plane.get(f"/api/v1/tasks/{task}") for task in TASKS})
            states = {task: body["status"] for task, body in found.items()}
            return set(states.values()) <= set(wanted) or states

        wait_for(f"five tasks are {' or '.join(wanted)}", ask, 60, 0.2)
        return found

    def containers(self) -> dict[str, tuple[str, str, bool]]:
        """Task -> id and start time of its container, and whether it runs."""
        form = "{{.Name}} {{.Id}} {{.State.StartedAt}} {{.State.Running}} {{.RestartCount}}"
        names = [f"task-{task}" for task in TASKS]
        lines = self.site.node.docker("inspect", "-f", form, *names).stdout.split("\n")
        parts = [line.split() for line in lines if line]
        assert [part[4] for part in parts] == ["0"] * len(TASKS)
        return {name.removeprefix("/task-"): (id, start, runs == "true") for name, id, start, runs, _ in parts}

    def supervised(self) -> set[str]:
        """The tasks that the agent says it holds."""
        return {task["task_id"] for task in self.site.status()["tasks"] if task["phase"] == "running"}

    def served_file(self) -> tuple[str, bytes]:
        """Where a mirror has the build for amd64 that is on offer, and its bytes."""
        entry = read_manifest(self.site.plane.builds_dir).builds["amd64"]
        return f"/static/agent/{entry.file}", (self.site.plane.builds_dir / entry.file).read_bytes()
