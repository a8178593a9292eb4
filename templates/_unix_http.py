# One question to who answers HTTP behind a socket of this machine: a container engine. It stands in the scripts between
# single quotes, so it contains none, and in what the roles run on a host.
import http.client
import json
import socket


class UnixHTTPConnection(http.client.HTTPConnection):
    def __init__(self, path, deadline_s):
        super().__init__("engine", timeout=deadline_s)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def get(path, what, deadline_s):
    """The parsed answer to GET; OSError, HTTPException or ValueError where there is none."""
    connection = UnixHTTPConnection(path, deadline_s)
    try:
        connection.request("GET", what)
        return json.loads(connection.getresponse().read().decode("utf-8"))
    finally:
        connection.close()
