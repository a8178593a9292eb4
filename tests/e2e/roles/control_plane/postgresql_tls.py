"""PostgreSQL, and nginx in front for TLS. It installs both on a node, which is too long for every commit:

HF_LAB_NODES=... python -m pytest tests/e2e/roles/control_plane/postgresql_tls.py
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from typing import Any, Optional

import pytest

from runtime.server.store.migrate import head
from tests.e2e.roles.control_plane.server_builds import NEXT, ServerBuilds
from tests.e2e.roles.control_plane.site import Site, certificate
from tests.lab import Lab
from tests.lab.simulated_node import Answer, SimulatedNode

pytestmark = pytest.mark.timeout(1500)  # one roll-out after another, on a machine that does other things, too
DOORBELL = "/api/v1/agent/doorbell?node_id="


class SecureNode(SimulatedNode):
    """It trusts the lab's CA and nobody else."""

    def __init__(self, site: Site, node_id: str) -> None:
        super().__init__(site.url, site.key, node_id, cards=1)
        self.context = ssl.create_default_context(cafile=str(site.ca))

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self.address, timeout=60, context=self.context)

    def headers(self) -> dict[str, str]:
        return {"X-API-Key": self.key, "X-Node-Id": self.node_id, "X-Instance-Id": self.instance_id}

    def call(
        self, method: str, path: str, body: Any = None, headers: Optional[dict[str, str]] = None, timeout: float = 60
    ) -> Answer:
        connection = self.connect()
        try:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json", **self.headers()})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


@pytest.fixture
def secure(lab: Lab, server_builds: ServerBuilds, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    node, folder = lab.nodes[-1], tmp_path_factory.mktemp("controller")
    certificate(folder, node.address)
    made = Site(
        node,
        server_builds,
        folder,
        url=f"https://{node.address}:3333",
        control_plane_database="postgresql",
        control_plane_tls="nginx",
        control_plane_mirror=True,
        control_plane_tls_certificate_file=str(folder / "tls.crt"),
        control_plane_tls_key_file=str(folder / "tls.key"),
    )
    made.ca = folder / "ca.pem"
    made.bare()
    yield made
    made.bare()


def test_postgresql_and_tls(secure: Site, server_builds: ServerBuilds) -> None:
    site = secure
    site.play("first", "--check", "--diff")
    made = site.play("first", "-vvv", "--diff")
    private = (site.folder / "tls.key").read_text().splitlines()[1]
    assert private not in made.output
    assert site.key not in made.output
    assert site.play("first").changed == {}

    # Over TLS, with the CA; without it nobody, without TLS a refusal that leads nowhere.
    assert site.preflight(site.key)[0] == 200
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        http.client.HTTPSConnection(site.node.address, 3333, timeout=60).request("GET", "/healthz")
    plain = http.client.HTTPConnection(site.node.address, 3333, timeout=60)
    plain.request("GET", "/api/v1/agent/preflight")
    answer = plain.getresponse()
    assert (answer.status, answer.headers["Location"]) == (400, None)
    for port in (13333, 13334, 80):
        with pytest.raises(OSError):
            socket.create_connection((site.node.address, port), 10)
    assert site.sh("stat -c '%a %U' /etc/heterofleet/tls.key").strip() == "600 root"

    # A beat names a doorbell at the same address, and it rings through nginx at once.
    node = SecureNode(site, "gpu-a")
    status, said = node.beat()
    assert (status, said["doorbell"]) == (200, f"{site.url}/api/v1/agent/doorbell")
    stream = node.connect()
    stream.request("GET", DOORBELL + node.node_id, headers=node.headers())
    held = stream.getresponse()
    assert (held.status, held.readline()) == (200, b": hello\n")
    held.readline()
    site.create_task("before")
    while (line := held.readline()).startswith((b":", b"\n")):
        pass
    assert line == b"event: wake\n"
    stream.close()

    # The same way up and back as with a file.
    stuck = site.play("stuck", check=False)
    assert "this data does not fit" in stuck.failures[site.node.name]
    dead = site.play("dead", check=False)
    assert site.outcome(dead)["result"] == "restored"
    assert (site.database()["schema"], site.tasks()) == (head(), {"before"})
    assert site.outcome(site.play("newer"))["result"] == "changed"
    assert (site.database()["schema"], site.tasks()) == (NEXT, {"before"})
    assert site.outcome(site.rollback(control_plane_rollback_loses_data=True))["result"] == "changed"
    assert (site.current(), site.database()["schema"]) == (server_builds.release("first"), head())
    assert "rehearsal" not in site.sh("runuser -u postgres -- psql -ltA")
