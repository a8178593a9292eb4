"""Three nodes with ten running tasks each, and everything that a roll-out must leave as it is there."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.protocol.manifest import ARCHITECTURES
from tests.e2e.roles.ansible import PLAYBOOKS, Fleet, Played
from tests.e2e.roles.bare import publish
from tests.e2e.roles.builds import Builds
from tests.integration.distribution.site import DESCRIBED
from tests.lab import Lab, Node
from tests.lab.control_plane import ControlPlane
from tests.lab.process import wait_for

TASKS = 10
"""On each node."""
OVER = "/srv/hf-waves"
"""A folder on each node; the tasks there end when a file appears in it."""
TOOL = "heterofleet-fleet "
"""With this begin the reasons of cordons that a roll-out made."""

# Every path with its kind, mode, owners and contents; what comes of settings, builds and unit, and not of time.
_STATE = (
    DESCRIBED
    + """
import json
found = {}
def note(path):
    found[path] = described(path)
for top in ("/opt/heterofleet", "/etc/heterofleet"):
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if os.path.join(folder, name) != "/opt/heterofleet/cache"]
        for name in folders + files:
            note(os.path.join(folder, name))
note("/etc/systemd/system/heterofleet-agent.service")
print(json.dumps(found))
"""
)
_CONTAINERS = (
    "docker ps -aq --no-trunc --filter label=heterofleet.task | sort | xargs -r docker inspect "
    "-f '{{.Id}} {{.State.StartedAt}} {{.State.Pid}} {{.RestartCount}} {{.State.Status}}'"
)


@dataclass
class Site:
    """``kinds``: name -> folder with builds, see ``bad``; "first" and "newer" are good ones."""

    lab: Lab
    plane: ControlPlane
    fleet: Fleet
    builds: Builds
    kinds: dict[str, Path] = field(default_factory=dict)

    @property
    def nodes(self) -> list[Node]:
        return self.fleet.nodes

    def offer(self, kind: str) -> str:
        """Stage this kind. Returns the name of its release."""
        folder = self.kind(kind)
        publish(self.plane, folder)
        self.fleet.variables["fleet_builds_dir"] = str(folder)
        return self.builds.release(folder)

    def kind(self, kind: str) -> Path:
        if kind not in self.kinds:
            self.kinds[kind] = self._made(kind)
        return self.kinds[kind]

    def _made(self, kind: str) -> Path:
        if kind in ("first", "newer"):
            return Path(getattr(self.builds, kind))
        if kind in ("exits", "silent"):
            return self.builds.kind(kind, ARCHITECTURES)
        folder = self.fleet.folder / kind
        shutil.copytree(self.builds.newer, folder)
        path = folder / "manifest.json"
        manifest = json.loads(path.read_text())
        mine, other = (manifest["builds"][arch] for arch in ("amd64", "arm64"))
        if kind == "flipped":
            program = folder / mine["file"]
            content = bytearray(program.read_bytes())
            content[len(content) // 2] ^= 1
            program.write_bytes(content)
        else:
            assert kind == "wrong architecture"
            content = bytearray((folder / other["file"]).read_bytes())
            (folder / mine["file"]).write_bytes(content)
            sums = {name: hashlib.new(name, content).hexdigest() for name in ("md5", "sha256")}
            mine.update(size=len(content), **sums)
            path.write_text(json.dumps(manifest))
        return folder

    def unchecked(self) -> Path:
        """upgrade.yml without the controller's look at builds and hosts: as when a disk goes bad after it."""
        text = (PLAYBOOKS / "upgrade.yml").read_text()
        assert text.count("tasks_from: prepare") == 1
        path = self.fleet.folder / "unchecked.yml"
        path.write_text(text.replace("tasks_from: prepare", "tasks_from: begin"))
        return path

    def play(self, playbook: str | Path, *words: str, check: bool = True, **extra: Any) -> Played:
        return self.fleet.play(playbook, *words, check=check, extra=extra)

    # What the control plane knows

    def ids(self) -> list[str]:
        return [node.name for node in self.nodes]

    def seen(self, node_id: str) -> dict[str, Any]:
        return self.plane.get(f"/api/v1/nodes/{node_id}")

    def cordon(self, node_id: str) -> dict[str, Any] | None:
        return self.seen(node_id)["cordon"]

    def call(self, node_id: str, what: str, **body: Any) -> None:
        status, answer = self.plane.request("POST", f"/api/v1/nodes/{node_id}/{what}", body)
        assert status == 200, answer

    def free(self) -> None:
        """No cordon anywhere."""
        for node_id in self.ids():
            self.call(node_id, "uncordon")

    def cordon_events(self, node_id: str) -> list[tuple[str, str]]:
        """(code, reason) of every cordon and its end, oldest first."""
        found = self.plane.get(f"/api/v1/events?kind=node_cordoned&node={node_id}")["events"]
        return [(one["code"], one["detail"] or "") for one in found]

    def runs(self, release: str) -> dict[str, bool]:
        """Node -> whether the control plane hears that release from there now."""
        wanted = release.rpartition("-")[0]
        found = {}
        for node_id in self.ids():
            node = self.seen(node_id)
            agent = node["agent"] or {}
            heard = f"{agent.get('version')}-{agent.get('commit')}{'-dirty' if agent.get('dirty') else ''}"
            found[node_id] = node["state"] == "online" and heard == wanted
        return found

    # What lies on the nodes

    def state(self, node: Node) -> dict[str, list[Any]]:
        """Path -> kind and mode, owners, contents of all that an installation consists of."""
        found: dict[str, list[Any]] = json.loads(node.run(["python3", "-Ic", _STATE]).stdout)
        return found

    def states(self) -> dict[str, dict[str, list[Any]]]:
        return {node.name: self.state(node) for node in self.nodes}

    def current(self, node: Node) -> str:
        return node.run(["readlink", "/opt/heterofleet/current"]).stdout.strip().removeprefix("releases/")

    # The customers' work

    def start_tasks(self) -> None:
        self.lab.load_image(self.nodes)
        for node in self.nodes:
            node.sh(f"mkdir -p {OVER} && rm -f {OVER}/*")
            for number in range(TASKS):
                # With exit codes of their own, so that a result that is another's would be seen.
                wait = f"until [ -e /over/now ]; do sleep 2; done; exit {number}"
                body = {
                    "id": self.task(node, number),
                    "name": "kept",
                    "image": self.lab.task_image,
                    "command": ["sh", "-c", wait],
                    "volumes": [{"host": OVER, "container": "/over", "read_only": True}],
                    "node_id": node.name,
                    "cpus": 0.01,
                    "memory_mib": 8,
                }
                status, answer = self.plane.request("POST", "/api/v1/tasks", body)
                assert status == 201, answer
        wait_for(
            "all tasks run", lambda: (self._statuses() == {"running"} and self._all_up()) or self._statuses(), 120, 0.5
        )

    @staticmethod
    def task(node: Node, number: int) -> str:
        return f"kept-{node.name}-{number}"

    def _tasks(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.plane.get("/api/v1/tasks?limit=1000")["tasks"]
        wanted = {self.task(node, number) for node in self.nodes for number in range(TASKS)}
        return [one for one in found if one["id"] in wanted]

    def _statuses(self) -> set[str]:
        return {one["status"] for one in self._tasks()}

    def _all_up(self) -> bool:
        """A claim is "running" before its container is."""
        found = self.containers()
        return all(len(lines) == TASKS and all(line.endswith("running") for line in lines) for lines in found.values())

    def containers(self) -> dict[str, list[str]]:
        """Node -> id, start, pid, restarts and state of each task's container."""
        return {node.name: node.sh(_CONTAINERS).splitlines() for node in self.nodes}

    def end_tasks(self) -> dict[str, tuple[str, int | None]]:
        """Let all end. Returns task -> status and exit code, when each has its result."""
        for node in self.nodes:
            node.sh(f"touch {OVER}/now")
        wait_for("all results", lambda: self._statuses() <= {"completed", "failed"} or self._statuses(), 120, 0.5)
        return {one["id"]: (one["status"], one["exit_code"]) for one in self._tasks()}

    def wanted_results(self) -> dict[str, tuple[str, int]]:
        return {
            self.task(node, number): ("failed" if number else "completed", number)
            for node in self.nodes
            for number in range(TASKS)
        }


def own_cordon(site: Site, node_id: str) -> bool:
    held = site.cordon(node_id)
    return held is not None and held["reason"].startswith(TOOL)


def outcomes(played: Played, names: Sequence[str]) -> list[str]:
    """The results of these hosts in their order."""
    return [played.outcomes[name]["result"] for name in names]
