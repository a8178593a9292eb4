"""The private registry at 198.18.0.1:5000: Debian's docker-registry with an htpasswd login."""

from __future__ import annotations

import base64
import contextlib
import secrets
import signal
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from tests.lab import images, places
from tests.lab.daemon import Daemon
from tests.lab.process import LabError, run

_SETTINGS = """\
version: 0.1
log: {{level: info, accesslog: {{disabled: false}}}}
storage:
  filesystem: {{rootdirectory: {root}}}
  delete: {{enabled: true}}
http:
  addr: {address}
  secret: {secret}
auth:
  htpasswd: {{realm: hf-lab, path: {passwords}}}
"""


class Registry:
    """One process on the machine; nodes reach it without TLS by their daemon.json."""

    address = places.REGISTRY
    user = places.REGISTRY_USER

    def __init__(self) -> None:
        self._daemon = Daemon("registry")

    @property
    def password_file(self) -> Path:
        return places.cache() / "registry-password"

    @property
    def password(self) -> str:
        return self.password_file.read_text().strip()

    @property
    def running(self) -> bool:
        return self._daemon.pid is not None

    @property
    def log(self) -> Path:
        """Access log and faults: shows which node asked for what, and how it was answered."""
        return self._daemon.log

    def ensure(self) -> None:
        """Running when this returns; needs the lab's network, whose bridge has the address."""
        if self.running:
            return
        places.make_folder(places.cache())
        if not self.password_file.exists():
            places.write_atomically(self.password_file, secrets.token_urlsafe(18).encode(), 0o600)
        folder = places.make_folder(places.state() / "registry", 0o700)
        table = run(["htpasswd", "-inB", self.user], input=self.password).stdout.strip()
        places.write_atomically(folder / "htpasswd", table.encode(), 0o600)
        settings = _SETTINGS.format(
            root=folder / "storage",
            address=self.address,
            secret=secrets.token_hex(16),
            passwords=folder / "htpasswd",
        )
        places.write_atomically(folder / "config.yml", settings.encode(), 0o600)
        self._daemon.start(
            ["docker-registry", "serve", str(folder / "config.yml")],
            lambda: self.request("GET", "/v2/")[0] == 200 or "no 200 from /v2/",
            timeout=20,
        )

    def stop(self) -> None:
        self._daemon.stop()

    def freeze(self) -> None:
        """Connections are accepted by the kernel and nothing answers: a stalled registry."""
        self._daemon.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._daemon.signal(signal.SIGCONT)

    def push(self, image: images.Image, reference: str) -> str:
        """Store the image under ``lab/name:tag``; returns the full reference for nodes."""
        repository, tag = images.split_reference(reference.removeprefix(f"{self.address}/"))
        blobs, manifest = image.blobs()
        for name, data in blobs.items():
            if self.request("HEAD", f"/v2/{repository}/blobs/{name}")[0] == 200:
                continue
            status, headers = self.request("POST", f"/v2/{repository}/blobs/uploads/", b"")
            self._expect(202, status, f"start an upload to {repository}")
            place = headers["Location"]
            joint = "&" if "?" in place else "?"
            status, _ = self.request(
                "PUT", f"{place}{joint}digest={name}", data, {"Content-Type": "application/octet-stream"}
            )
            self._expect(201, status, f"upload a blob to {repository}")
        status, _ = self.request(
            "PUT",
            f"/v2/{repository}/manifests/{tag or 'latest'}",
            manifest,
            {"Content-Type": images.MANIFEST_TYPE},
        )
        self._expect(201, status, f"store the manifest of {reference}")
        return f"{self.address}/{repository}:{tag or 'latest'}"

    def push_files(self, reference: str, files: Mapping[str, images.Content]) -> str:
        """Push the task image with these files on top: an image of its own content, quickly told apart."""
        from tests.lab import task_image

        return self.push(task_image.image().plus(files), reference)

    def request(
        self,
        method: str,
        path: str,
        body: Optional[bytes] = None,
        headers: Optional[Mapping[str, str]] = None,
        login: bool = True,
    ) -> tuple[int, Mapping[str, str]]:
        """One call of the registry's HTTP API: status (0 when it does not answer) and headers."""
        url = path if path.startswith("http") else f"http://{self.address}{path}"
        request = urllib.request.Request(url, data=body, method=method, headers=dict(headers or {}))
        if login:
            pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {pair}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with contextlib.closing(opener.open(request, timeout=30)) as answer:
                answer.read()
                return answer.status, dict(answer.headers)
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers)
        except OSError:
            return 0, {}

    def _expect(self, wanted: int, found: int, what: str) -> None:
        if found != wanted:
            raise LabError(f"the registry answered {found}, wanted {wanted}, to: {what}. Read {self.log}.")
