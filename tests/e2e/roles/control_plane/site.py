"""A lab node that a control plane is brought to by its playbook."""

from __future__ import annotations

import json
import secrets
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Optional

from tests.e2e.roles.ansible import Fleet, Played
from tests.e2e.roles.control_plane.server_builds import ServerBuilds
from tests.lab import Node, places

BARE = """
systemctl disable --quiet --now heterofleet-server 2>/dev/null || :
systemctl reset-failed heterofleet-server 2>/dev/null || :
rm -rf /opt/heterofleet-server /etc/heterofleet /var/lib/heterofleet/server /usr/local/bin/heterofleet \
    /etc/systemd/system/heterofleet-server.service /etc/nginx/conf.d/heterofleet.conf
systemctl daemon-reload
systemctl is-active --quiet nginx && systemctl reload nginx || :
if command -v dropdb >/dev/null; then
    for name in heterofleet heterofleet_rehearsal; do runuser -u postgres -- dropdb --if-exists "$name"; done
fi
id heterofleet >/dev/null 2>&1 && userdel heterofleet || :
"""
TREE = "find /opt /etc/heterofleet /etc/systemd/system /var/lib/heterofleet /etc/passwd -not -path '*/venv/*' -ls || :"


class Site:
    """``settings`` go into the inventory; ``folder`` is the controller's, with key and token."""

    def __init__(self, node: Node, builds: ServerBuilds, folder: Path, **settings: Any) -> None:
        self.node, self.builds, self.folder = node, builds, folder
        self.key = secrets.token_urlsafe(32)
        self.ca: Optional[Path] = None
        self.url = settings.pop("url", f"http://{node.address}:3333")
        places.write_atomically(folder / "key", self.key.encode() + b"\n", 0o600)
        self.fleet = Fleet(
            None,
            [node],
            folder,
            groups={"control_plane": [node.name]},
            fleet_server_url=self.url,
            fleet_api_key_file=str(folder / "key"),
            fleet_token_file=str(folder / "token"),
            **settings,
        )

    def play(self, kind: str, *words: str, check: bool = True, **extra: Any) -> Played:
        """The playbook with that kind of build."""
        self.fleet.variables["fleet_server_builds_dir"] = str(self.builds[kind])
        return self.fleet.play("control_plane.yml", *words, check=check, extra=extra, timeout=900)

    def rollback(self, check: bool = True, **extra: Any) -> Played:
        return self.fleet.role("control_plane", "rollback", hosts="control_plane", vars=extra, check=check, timeout=900)

    def outcome(self, played: Played) -> dict[str, Any]:
        said = played.results("Keep what came of it", status="ok")[-1]["said"]
        return dict(said["ansible_facts"]["control_plane_outcome"])

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """A call from outside; with the operator's token unless headers say who asks."""
        request = urllib.request.Request(self.url + path, None if body is None else json.dumps(body).encode())
        request.method = method
        request.add_header("Content-Type", "application/json")
        if not headers and (self.folder / "token").exists():
            headers = {"Authorization": f"Bearer {(self.folder / 'token').read_text().strip()}"}
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        context = ssl.create_default_context(cafile=str(self.ca)) if self.ca else None
        handlers = [urllib.request.ProxyHandler({})]
        handlers += [urllib.request.HTTPSHandler(context=context)] if context else []
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def preflight(self, key: str) -> tuple[int, Any]:
        return self.ask("GET", "/api/v1/agent/preflight", X_API_Key=key)

    def create_task(self, name: str) -> None:
        """It waits: there is no node."""
        status, answer = self.ask("POST", "/api/v1/tasks", {"id": name, "name": name, "image": "thing:1"})
        assert status == 201, answer

    def tasks(self) -> set[str]:
        status, answer = self.ask("GET", "/api/v1/tasks")
        assert status == 200, answer
        return {task["id"] for task in answer["tasks"]}

    def database(self) -> dict[str, Any]:
        """What the release in force says of it."""
        return dict(json.loads(self.sh("runuser -u heterofleet -- heterofleet server migrate --show -o json")))

    def process(self) -> str:
        """The running server: its pid."""
        return self.sh("systemctl show --property=MainPID --value heterofleet-server").strip()

    def current(self) -> str:
        return self.sh("readlink /opt/heterofleet-server/current").strip().removeprefix("releases/")

    def sh(self, script: str) -> str:
        return self.node.sh(script)

    def tree(self) -> str:
        """Names, modes, owners and times of what the role writes, without what is unpacked."""
        return self.sh(TREE)

    def bare(self) -> None:
        self.node.sh(BARE)


def certificate(folder: Path, address: str) -> None:
    """A CA of its own (ca.pem) and a certificate for ``address`` (tls.crt, tls.key)."""
    made = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]
    (folder / "ext").write_text(f"subjectAltName=IP:{address}")
    for words in (
        [*made, "-x509", "-subj", "/CN=lab ca", "-keyout", "ca.key", "-out", "ca.pem"],
        [*made, "-subj", "/CN=lab", "-keyout", "tls.key", "-out", "tls.csr"],
        ["openssl", "x509", "-req", "-in", "tls.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]
        + ["-days", "30", "-extfile", "ext", "-out", "tls.crt"],
    ):
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
