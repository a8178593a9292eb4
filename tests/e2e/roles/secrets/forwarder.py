"""A plain HTTP proxy that wants a login, for the lab's own addresses."""

from __future__ import annotations

import base64
import hmac
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import quote, urlsplit

HOP = {"proxy-authorization", "proxy-connection", "connection", "keep-alive", "transfer-encoding"}


class Forwarder:
    """``url`` has the login in it, escaped as in a setting; ``served`` counts what was let through."""

    def __init__(self, address: str, user: str, password: str) -> None:
        wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self.served = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _pass_on(self) -> None:
                if not hmac.compare_digest(self.headers.get("Proxy-Authorization", ""), wanted):
                    self.send_response(407)
                    self.send_header("Proxy-Authenticate", "Basic")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                to = urlsplit(self.path)
                assert to.hostname is not None
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                onward = http.client.HTTPConnection(to.hostname, to.port or 80, timeout=60)
                try:
                    headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
                    target = to.path + (f"?{to.query}" if to.query else "")
                    onward.request(self.command, target, body or None, headers)
                    answer = onward.getresponse()
                    data = answer.read()
                finally:
                    onward.close()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in HOP | {"content-length"}:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                outer.served += 1

            do_GET = do_POST = do_PUT = do_DELETE = _pass_on

            def log_message(self, format: str, *args: object) -> None:
                """Nothing is said."""

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{user}:{quote(password, safe='')}@{address}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Forwarder:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
