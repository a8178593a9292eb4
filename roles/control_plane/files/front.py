"""nginx in front of the server, with the certificate and the settings that are staged."""

import contextlib
import hashlib
import re
import shutil
import ssl
import time
import urllib.request
from pathlib import Path

from host import (
    ETC,
    POLL_S,
    STAGED,
    run,
    said,
    systemctl,
    write,
)

CONF = Path("/etc/nginx/conf.d/heterofleet.conf")
MAIN_CONF = Path("/etc/nginx/nginx.conf")
WELCOME = Path("/etc/nginx/sites-enabled/default")
FRONT = {"nginx.conf": (CONF, 0o644), "tls.crt": (ETC / "tls.crt", 0o644), "tls.key": (ETC / "tls.key", 0o600)}
"""Name among what is staged -> where it belongs."""
CONNECTIONS = 20000
DOOR = "/.heterofleet-front"
"""Tells somebody on this host which settings the running nginx has."""


def running_digest(port):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is this very host
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    with contextlib.suppress(OSError), opener.open(f"https://127.0.0.1:{port}{DOOR}", timeout=5) as answer:
        return answer.read().decode()
    return None


def enough_connections(text):
    """nginx.conf with room for a fleet: each client is two connections, and Debian's default is 768."""
    text = re.sub(
        r"worker_connections\s+(\d+)\s*;",
        lambda found: f"worker_connections {max(CONNECTIONS, int(found[1]))};",
        text,
    )
    if "worker_rlimit_nofile" not in text:
        text = f"worker_rlimit_nofile {3 * CONNECTIONS};\n{text}"
    return text


def is_packages_own(path):
    """A settings file that nobody has changed since Debian's package brought it."""
    said = (
        run("dpkg-query", "--show", "--showformat=${Conffiles}", "nginx-common").stdout
        if shutil.which("dpkg-query")
        else ""
    )
    digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    return f" {path} {digest}" in f" {' '.join(said.split())}"


def front(words):
    wanted = {place: ((STAGED / name).read_bytes(), mode) for name, (place, mode) in FRONT.items()}
    wanted[MAIN_CONF] = (enough_connections(MAIN_CONF.read_text()).encode(), 0o644)
    before = {place: place.read_bytes() if place.exists() else None for place in wanted}
    changes = [str(place) for place, (data, _) in wanted.items() if before[place] != data]
    welcome = WELCOME.is_symlink() and WELCOME.exists() and is_packages_own(WELCOME.resolve())
    if welcome:
        changes.append(f"{WELCOME} (the welcome page on port 80)")
    if not changes and running_digest(words["port"]) != words["digest"]:
        changes.append("nginx runs with something else, or does not run")
    if not changes or words["check"]:
        return said("changed" if changes else "unchanged", None, None, ", ".join(changes))
    try:
        for place, (data, mode) in wanted.items():
            write(place, data, mode, (0, 0))
        if welcome:
            WELCOME.unlink()
        if shutil.which("getenforce") and run("getenforce").stdout.strip() == "Enforcing":
            run("setsebool", "-P", "httpd_can_network_connect", "1", check=True)
        run("/usr/sbin/nginx", "-t", "-q", check=True)
        systemctl("enable", "--quiet", "nginx")
        systemctl("reload-or-restart", "nginx")
        deadline = time.monotonic() + 60
        while running_digest(words["port"]) != words["digest"]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"nginx does not answer on port {words['port']} with the new settings")
            time.sleep(POLL_S)
    except Exception as error:
        for place, data in before.items():
            if data is None:
                place.unlink(missing_ok=True)
            else:
                write(place, data, wanted[place][1], (0, 0))
        run("systemctl", "reload-or-restart", "nginx")
        return said("restored", None, None, str(error))
    return said("changed", None, None, ", ".join(changes))
