"""A control plane and a static mirror whose folders the role writes, and a controller's folder with builds of no size.

The control plane is a real one on this machine, and a host of the inventory by a local connection. The mirror is any
web server: one that knows nothing of ours.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.artifacts.publish import publish
from tests.e2e.roles.ansible import Fleet, Played
from tests.lab import Node, places
from tests.lab.control_plane import ControlPlane

PLANE_HOST = "the-plane"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        return


@dataclass
class Places:
    """``dist``: the controller's folder; ``builds``: what the control plane hands out; ``tree``: the mirror's root."""

    plane: ControlPlane
    dist: Path
    tree: Path
    mirror: str
    folder: Path

    @property
    def builds(self) -> Path:
        return self.plane.builds_dir

    @property
    def mirrored(self) -> Path:
        return self.tree / "static" / "agent"

    def fleet(self, nodes: Sequence[Node] = (), *, staged: bool = True, **variables: Any) -> Fleet:
        """``staged``: the control plane and the mirror are ours to write; else they are somebody else's."""
        ours = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "distribution_server_builds_dir": str(self.builds),
            "distribution_mirror_dir": str(self.tree),
        }
        said = {"fleet_builds_dir": str(self.dist), "fleet_mirror_url": self.mirror, **variables}
        if not staged:
            return Fleet(self.plane, nodes, self.folder, **said)
        hosts = {"groups": {"control_plane": [PLANE_HOST]}, "host_vars": {PLANE_HOST: ours}}
        return Fleet(self.plane, nodes, self.folder, distribution_mirror_dir=str(self.tree), **hosts, **said)

    def stage(self, *words: str, check: bool = True, **variables: Any) -> Played:
        return self.fleet(**variables).role("distribution", "main", *words, hosts="localhost", check=check)

    def have(self, builds: Path) -> None:
        """These builds lie on the controller."""
        shutil.rmtree(self.dist, ignore_errors=True)
        shutil.copytree(builds, self.dist)

    def empty(self) -> None:
        """Nothing is handed out."""
        for folder in (self.builds, self.tree):
            shutil.rmtree(folder, ignore_errors=True)

    def hand_out(self, builds: Path) -> None:
        """All three places have these builds, without the role."""
        self.have(builds)
        self.empty()
        shutil.copytree(builds, self.builds)
        publish(builds, self.tree, server_url=self.plane.url, mirror_url=self.mirror, progress=lambda _line: None)


@contextmanager
def three_places(folder: Path) -> Iterator[Places]:
    tree = folder / "mirror"
    tree.mkdir()
    handler = functools.partial(_Quiet, directory=str(tree))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    plane = ControlPlane("places", listen=f"{places.HOST_ADDRESS}:{places.port(6)}", doorbell="")
    plane.remove()
    plane.start()
    try:
        yield Places(plane, folder / "dist", tree, f"http://127.0.0.1:{server.server_port}", folder / "run")
    finally:
        plane.remove()
        server.shutdown()
        server.server_close()


def shown(played: Played) -> str:
    """The table."""
    return "\n".join(str(one["said"]["msg"]) for one in played.results("Show", status="ok"))


def lines(text: str, *words: str) -> list[str]:
    """Lines with all of these words in them."""
    return [line for line in text.splitlines() if all(word in line for word in words)]
