"""A registry that answers as a test wants: refuses in a given way, or stalls in the middle of a layer."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.lab import images
from tests.lab.images import Image

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


class StubRegistry:
    """``error``: (HTTP status, registry code, message) for every manifest. ``stall``: layers stop half-way until
    ``release`` is set. ``at``: where it listens; port 0 is any that is free."""

    def __init__(
        self,
        image: Image,
        *,
        error: tuple[int, str, str] | None = None,
        stall: bool = False,
        at: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        self.release = threading.Event()
        self.manifests = self.stalled = 0
        self.headers: list[dict[str, str]] = []
        config = image.config()
        layers = [images.gzip.compress(layer) for layer in image.layers]
        blobs = {digest(blob): blob for blob in (config, *layers)}
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config),
                           "digest": digest(config)},
                "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "size": len(layer),
                            "digest": digest(layer)} for layer in layers],
            }
        ).encode()  # fmt: skip
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                stub.headers.append(dict(self.headers.items()))
                if self.path == "/v2/":
                    self.send(200, b"{}", "application/json")
                elif "/manifests/" in self.path:
                    stub.manifests += self.command == "GET" or error is not None
                    if error is not None:
                        body = {"errors": [{"code": error[1], "message": error[2]}]}
                        self.send(error[0], json.dumps(body).encode(), "application/json")
                    else:
                        self.send(200, manifest, MANIFEST)
                else:
                    blob = blobs.get(self.path.rpartition("/")[2])
                    if blob is None:
                        self.send(404, b"{}", "application/json")
                    else:
                        self.send(200, blob, "application/octet-stream", stall and blob is not config)

            do_HEAD = do_GET

            def send(self, status: int, body: bytes, kind: str, stall: bool = False) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Docker-Content-Digest", digest(body))
                self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
                self.end_headers()
                if self.command == "HEAD":
                    return
                if stall and not stub.release.is_set():
                    self.wfile.write(body[: len(body) // 2])
                    self.wfile.flush()
                    stub.stalled += 1
                    stub.release.wait(120)
                    self.close_connection = True
                    with contextlib.suppress(OSError):  # who asked may have left
                        self.wfile.write(body[len(body) // 2 :])
                    return
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(at, Handler)
        self._http.daemon_threads = True
        self.address = f"{at[0]}:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def __enter__(self) -> StubRegistry:
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._http.shutdown()
        self._http.server_close()


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
