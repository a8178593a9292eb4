# Asks the container engine behind a socket for its version: SOCKET. Prints it, or ends with 1; with 3 where nobody
# listens, and the socket is what another engine left. _unix_http.py stands before this text.
# The text stands between single quotes in the scripts, so it contains none.
# ruff: noqa: F821 (get is of _unix_http.py)
import http.client
import sys

try:
    sys.stdout.write(get(sys.argv[1], "/version", 10)["Version"])
except ConnectionRefusedError:
    sys.exit(3)
except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
    sys.exit(1)
