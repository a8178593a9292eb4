# What the installation scripts do with the Python of the node instead of with tools that may be missing:
# HTTP, checksums, JSON. The text stands between single quotes in the scripts, so it contains none; a key
# comes on standard input only. Exit codes are those of the scripts.
import hashlib
import http.client
import ipaddress
import json
import os
import re
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

USAGE, KEY, UNREACHABLE, DOWNLOAD, STEP = 2, 3, 4, 6, 8
PIECE = 1 << 16
LIMIT = 1 << 20


def stop(code, text):
    print("heterofleet: " + text, file=sys.stderr)
    sys.exit(code)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments):
        return None


def fetch(url, ca_file, headers, timeout=20):
    context = ssl.create_default_context(cafile=ca_file or None) if url.startswith("https:") else None
    # Proxy variables are not read: the agent does not read them either, so what works here works there.
    handlers = [NoRedirect(), urllib.request.ProxyHandler({})]
    handlers += [urllib.request.HTTPSHandler(context=context)] if context else []
    return urllib.request.build_opener(*handlers).open(urllib.request.Request(url, headers=headers), timeout=timeout)


def refusal(error, url):
    """One sentence on an answer that is no success, with the words of the server where it is ours."""
    if error.code in (301, 302, 303, 307, 308):
        target = error.headers.get("Location", "nowhere")
        return url + " redirects to " + target + "; give that address with --server if it is the right one"
    text = url + " answered with HTTP status " + str(error.code)
    try:
        detail = json.loads(error.read(LIMIT))["detail"]
    except Exception:
        return text + ", and not as a HeteroFleet control plane answers"
    return text + ": " + str(detail)


def why(error):
    return str(getattr(error, "reason", None) or error or type(error).__name__)


FAILURES = (OSError, http.client.HTTPException)


def near(host):
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return False
    return (address.is_private or address.is_loopback or address.is_link_local) and not address.is_unspecified


def address(url, allow_plain_http):
    """Print the address without a slash at its end, when the key may be sent there."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https") or re.search(r"[\s?#@]", url) or not url.isascii():
        stop(USAGE, "found the address " + repr(url) + ", wanted a URL such as http://HOST:3333 or https://HOST")
    if parts.scheme == "http" and allow_plain_http != "true" and not near(host):
        stop(
            USAGE,
            "plain http:// to " + host + ", which is neither loopback nor a private address, would send the key "
            "in the open; use https://, or set HETEROFLEET_ALLOW_PLAIN_HTTP=true if that may be",
        )
    print(url.rstrip("/"))


def key(file):
    """Print the key in the file (- is standard input), without its one newline at the end, when it can be one."""
    where = "the key" if file == "-" else file
    try:
        data = sys.stdin.buffer.read(4097) if file == "-" else open(file, "rb").read(4097)
    except OSError as error:
        stop(USAGE, "cannot read the key file " + file + ": " + why(error))
    if len(data) > 4096:
        stop(KEY, where + " has more than 4096 bytes; wanted the key alone")
    if data.endswith(b"\r\n"):
        stop(KEY, where + " ends with a carriage return (Windows line ends); save it with Unix line ends")
    if data.endswith(b"\n"):
        data = data[:-1]
    if not data:
        stop(KEY, where + " is empty; wanted the system key of the control plane")
    for byte in data:
        if not 33 <= byte <= 126:
            names = {10: "a line break", 13: "a carriage return", 32: "a blank", 9: "a tab"}
            found = names.get(byte, "the byte " + hex(byte))
            stop(KEY, where + " contains " + found + "; a key is printable ASCII without blanks")
    print(data.decode("ascii"))


def preflight(base, ca_file):
    """Ask the control plane whether the key is right; the key comes on standard input."""
    url = base + "/api/v1/agent/preflight"
    given = sys.stdin.buffer.read().decode("ascii")
    try:
        with fetch(url, ca_file, {"X-API-Key": given}) as answer:
            found = json.loads(answer.read(LIMIT))["control_plane_id"]
    except urllib.error.HTTPError as error:
        if error.code == 401:
            stop(KEY, base + " refuses the key (HTTP status 401); nothing was changed on this node")
        stop(UNREACHABLE, refusal(error, url))
    except FAILURES as error:
        stop(UNREACHABLE, "cannot reach " + base + ": " + why(error))
    except (ValueError, KeyError, TypeError):
        stop(UNREACHABLE, url + " answered, and not as a HeteroFleet control plane answers")
    print(found)


def manifest(base, ca_file, arch, wanted):
    """Print version, release folder, size and sha256 of the build for this architecture, a line each."""
    url = base + "/static/agent/manifest.json"
    try:
        with fetch(url, ca_file, {}) as answer:
            listing = json.loads(answer.read(LIMIT))
        version, commit, dirty = listing["version"], listing["commit"], bool(listing["dirty"])
        build = listing["builds"].get(arch)
        digest, size = (build["sha256"], int(build["size"])) if build else ("0" * 64, 0)
        whole = all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", word) for word in (version, commit))
        if not whole or not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise ValueError(url)
    except urllib.error.HTTPError as error:
        stop(DOWNLOAD, refusal(error, url))
    except FAILURES as error:
        stop(DOWNLOAD, "cannot read " + url + ": " + why(error))
    except (ValueError, KeyError, TypeError, AttributeError):
        stop(DOWNLOAD, url + " is not a list of builds: HTTP status 200, and another content")
    name = version + "-" + commit + ("-dirty" if dirty else "")
    if build is None:
        stop(DOWNLOAD, "the control plane has no build for " + arch + "; it has: " + ", ".join(listing["builds"]))
    if wanted and wanted not in (version, name):
        stop(DOWNLOAD, "wanted version " + wanted + ", and the control plane hands out " + name)
    for line in (version, name + "-" + digest[:8], size, digest):
        print(line)


def download(base, ca_file, arch, target, size, digest):
    """Write the build to the target, which must not exist yet; it stays only when size and sha256 are right."""
    url = base + "/static/agent?arch=" + arch
    size = int(size)
    space = os.statvfs(os.path.dirname(target))
    free = space.f_bavail * space.f_frsize
    if free < 8 * size:
        stop(STEP, "%s has %d MiB free, wanted %d" % (os.path.dirname(target), free >> 20, (8 * size >> 20) + 1))
    for attempt in (1, 2, 3):
        problem, final = take(url, ca_file, target, size, digest)
        if not problem:
            return
        os.unlink(target)
        if final or attempt == 3:
            stop(DOWNLOAD, problem)
        time.sleep(attempt)


def take(url, ca_file, target, size, digest):
    """(what went wrong or nothing, whether another try is useless)."""
    seen, sha256 = 0, hashlib.sha256()
    with open(target, "xb") as file:
        try:
            with fetch(url, ca_file, {}) as answer:
                kind = answer.headers.get("Content-Type", "unknown")
                announced = answer.headers.get("Content-Length", "unknown")
                piece = answer.read(PIECE)
                while piece and seen <= size:
                    seen += len(piece)
                    sha256.update(piece)
                    file.write(piece)
                    piece = answer.read(PIECE)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o755)
        except urllib.error.HTTPError as error:
            return refusal(error, url), error.code < 500
        except FAILURES as error:
            return "the download of " + url + " broke off after " + str(seen) + " bytes: " + why(error), False
    if (seen, sha256.hexdigest()) == (size, digest):
        return None, True
    found = ("more than " if seen > size else "") + str(seen) + " bytes of type " + kind
    return url + " answered with HTTP status 200 and " + found + ", sha256 " + sha256.hexdigest() + (
        "; wanted " + str(size) + " bytes, sha256 " + digest
    ), announced == str(seen)


def same(file, digest):
    """Exit 0 when the file has this sha256."""
    sha256 = hashlib.sha256()
    try:
        with open(file, "rb") as opened:
            for piece in iter(lambda: opened.read(PIECE), b""):
                sha256.update(piece)
    except OSError:
        sys.exit(1)
    sys.exit(sha256.hexdigest() != digest)


def text(value):
    """Print a text as YAML and JSON both read it."""
    if not value.isprintable():
        stop(USAGE, "found " + repr(value) + ", wanted printable text")
    print(json.dumps(value, ensure_ascii=False))


def labels(*pairs):
    """Print a map of labels from K=V words."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name or not pair.isprintable():
            stop(USAGE, "found the label " + repr(pair) + ", wanted K=V")
        found[name] = value
    print(json.dumps(found, ensure_ascii=False))


def status(what):
    """Read the JSON of `heterofleet-agent status`; print one member, or the words of the error it shows."""
    try:
        found = json.load(sys.stdin)
    except ValueError:
        found = {}
    if what == "error":
        error = found.get("last_error") or {}
        print(error.get("text") or "")
    else:
        value = found.get(what)
        print("" if value is None else value)


globals()[sys.argv[1]](*sys.argv[2:])
