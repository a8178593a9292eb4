# What the installation scripts do with the Python of the node instead of with tools that may be missing:
# HTTP, checksums, JSON. The text stands between single quotes in the scripts, so it contains none; a key
# comes on standard input only, a proxy (which may have a login) is read from the settings file that the
# environment names in BASE. Exit codes are those of the scripts.
import hashlib
import http.client
import ipaddress
import json
import os
import re
import ssl
import stat
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


def scalar(name):
    """A setting of the present agent.yaml when it is a text in one line, else nothing."""
    try:
        with open(os.environ["BASE"], encoding="utf-8") as file:
            found = re.search(r"^" + name + r"[ \t]*:[ \t]+(.*?)[ \t]*$", file.read(), re.MULTILINE)
    except (KeyError, OSError, ValueError):
        return ""
    word = found.group(1) if found else ""
    quoted = re.match(r"""("(?:[^"\\]|\\.)*")|\x27((?:[^\x27]|\x27\x27)*)\x27""", word)
    try:
        if quoted:
            return json.loads(quoted.group(1)) if quoted.group(1) else quoted.group(2).replace("\x27\x27", "\x27")
    except ValueError:
        return ""
    word = re.sub(r"(^|[ \t]+)#.*", "", word)
    return "" if word in ("null", "Null", "NULL", "~") else word


def setting(name):
    """Print that setting."""
    print(scalar(name))


# Where the agent looks for trust when no file is named: the same places, so what works here works there.
SYSTEM_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def trusted(ca_file):
    """Where trust comes from, as a file; nothing when the system has none that we know."""
    known = (ca_file, ssl.get_default_verify_paths().cafile, *SYSTEM_CA_FILES)
    return next((path for path in known if path and (path == ca_file or os.path.isfile(path))), None)


def fetch(url, ca_file, headers, timeout=20):
    context = ssl.create_default_context(cafile=trusted(ca_file)) if url.startswith("https:") else None
    # Proxy variables are not read, only the setting: it is the same with the agent.
    proxy = scalar("proxy")
    handlers = [NoRedirect(), urllib.request.ProxyHandler({"http": proxy, "https": proxy} if proxy else {})]
    handlers += [urllib.request.HTTPSHandler(context=context)] if context else []
    return urllib.request.build_opener(*handlers).open(urllib.request.Request(url, headers=headers), timeout=timeout)


def refusal(error, url):
    """One sentence on an answer that is no success, with the words of the server where it is ours."""
    if error.code in (301, 302, 303, 307, 308):
        target = error.headers.get("Location", "nowhere")
        return url + " redirects to " + target + "; give that address with --server if it is the right one"
    text = url + " answered with HTTP status " + str(error.code)
    if error.code == 407:
        return text + ": the proxy of " + os.environ["BASE"] + " wants a login"
    try:
        detail = json.loads(error.read(LIMIT))["detail"]
    except Exception:
        return text + ", and not as a HeteroFleet control plane answers"
    return text + ": " + str(detail)


def why(error, ca_file=""):
    """The cause in words; what to do about it where a certificate or a proxy is the cause."""
    cause = getattr(error, "reason", None) or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return "its certificate was not accepted (%s); trust comes from %s: give --ca-file FILE with the CA that " % (
            cause.verify_message or cause,
            trusted(ca_file) or "nowhere",
        ) + ("signed it (the setting ca_file)")
    text = str(cause) or type(cause).__name__
    if scalar("proxy"):
        text += " (through the proxy of " + os.environ["BASE"] + ")"
    return text


FAILURES = (OSError, http.client.HTTPException)


def ip(host):
    try:
        return ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return None


def near(host):
    found = ip(host)
    if found is None:
        return host.lower() == "localhost"
    found = getattr(found, "ipv4_mapped", None) or found
    return (found.is_private or found.is_loopback or found.is_link_local) and not found.is_unspecified


def address(url, allow_plain_http):
    """Print the address without a slash at its end, when the key may be sent there. Nothing is guessed."""
    authority = url.split("://", 1)[-1].split("/", 1)[0]
    if "@" in authority:
        stop(USAGE, "found a user name or password in the address, wanted it without; the key has its own option")
    if authority.count(":") > 1 and "[" not in authority:
        scheme = url.split("://", 1)[0] if "://" in url else "http"
        head, _, port = authority.rpartition(":")
        meant = "%s://[%s]:3333" % (scheme, authority)
        if port.isdigit() and len(port) >= 4 and ip(head):
            meant = "%s://[%s]:%s (or %s if %s is part of the address)" % (scheme, head, port, meant, port)
        stop(USAGE, "found the address " + repr(url) + ", wanted brackets around an IPv6 address: " + meant)
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    wrong = not host or parts.scheme not in ("http", "https") or (":" in host and not ip(host))
    if wrong or re.search(r"[\s?#]", url) or not url.isascii():
        wanted = "http://HOST:3333, http://[ADDRESS]:3333 or https://HOST"
        stop(USAGE, "found the address " + repr(url) + ", wanted a URL such as " + wanted)
    if parts.scheme == "http" and allow_plain_http != "true" and not near(host):
        stop(
            USAGE,
            "plain http:// to " + host + ", which is neither loopback nor a private address, would send the key, or "
            "fetch a program, in the open; use https://, or set HETEROFLEET_ALLOW_PLAIN_HTTP=true if that may be",
        )
    print(url.rstrip("/"))


def certificates(ca_file):
    """Print where the certificates are that the agent will trust: the file given, else the setting of the agent."""
    file = ca_file or scalar("ca_file")
    if file:
        try:
            ssl.create_default_context(cafile=file)
        except OSError as error:
            found = "no certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror
            stop(USAGE, "cannot take certificates from " + file + " (--ca-file, or the setting ca_file): " + found)
    print(file)


def key(file):
    """Print the key in the file (- is standard input), without its one newline at the end, when it can be one."""
    where = "the key" if file == "-" else file
    try:
        with sys.stdin.buffer if file == "-" else open(file, "rb") as opened:
            data, info = opened.read(4097), os.fstat(opened.fileno())
    except OSError as error:
        stop(USAGE, "cannot read the key file " + file + ": " + str(error.strerror))
    if stat.S_ISREG(info.st_mode) and info.st_mode & 0o077:
        mode = oct(stat.S_IMODE(info.st_mode))[2:]
        print(
            "heterofleet: warning: others can reach the key in %s (mode %s); wanted 600" % (file, mode), file=sys.stderr
        )
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
        stop(UNREACHABLE, "cannot reach " + base + ": " + why(error, ca_file))
    except (ValueError, KeyError, TypeError):
        stop(UNREACHABLE, url + " answered with HTTP status 200, and not as a HeteroFleet control plane answers")
    print(found)


def manifest(base, ca_file, arch, wanted):
    """Print version, release folder, file name, size and sha256 of the build for this architecture, a line each."""
    url = base + "/static/agent/manifest.json"
    try:
        with fetch(url, ca_file, {}) as answer:
            listing = json.loads(answer.read(LIMIT))
        version, commit, dirty = listing["version"], listing["commit"], bool(listing["dirty"])
        build = listing["builds"].get(arch)
        digest, size, file = (build["sha256"], int(build["size"]), build["file"]) if build else ("0" * 64, 0, "none")
        whole = all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", word) for word in (version, commit, file))
        if not whole or not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise ValueError(url)
    except urllib.error.HTTPError as error:
        stop(DOWNLOAD, refusal(error, url))
    except FAILURES as error:
        stop(DOWNLOAD, "cannot read " + url + ": " + why(error, ca_file))
    except (ValueError, KeyError, TypeError, AttributeError):
        stop(DOWNLOAD, url + " is not a list of builds: HTTP status 200, and another content")
    name = version + "-" + commit + ("-dirty" if dirty else "")
    if build is None:
        stop(DOWNLOAD, base + " has no build for " + arch + "; it has: " + ", ".join(listing["builds"]))
    if wanted and wanted not in (version, name):
        stop(DOWNLOAD, "wanted version " + wanted + ", and " + base + " hands out " + name)
    for line in (version, name + "-" + digest[:8], file, size, digest):
        print(line)


def download(url, ca_file, target, size, digest):
    """Write the build to the target, which must not exist yet; it stays only when size and sha256 are right."""
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
            return "the download of " + url + " broke off after " + str(seen) + " bytes: " + why(error, ca_file), False
    if (seen, sha256.hexdigest()) == (size, digest):
        return None, True
    found = ("more than " if seen > size else "") + str(seen) + " bytes of type " + kind
    return url + " answered with HTTP status 200 and " + found + ", sha256 " + sha256.hexdigest() + (
        "; wanted " + str(size) + " bytes, sha256 " + digest
    ), announced == str(seen)


def same(file, digest):
    """Exit 0 when the sha256 of the file begins like this."""
    sha256 = hashlib.sha256()
    try:
        with open(file, "rb") as opened:
            for piece in iter(lambda: opened.read(PIECE), b""):
                sha256.update(piece)
    except OSError:
        sys.exit(1)
    sys.exit(not sha256.hexdigest().startswith(digest))


def text(value):
    """Print a text as YAML and JSON both read it."""
    if not value.isprintable():
        stop(USAGE, "found " + repr(value) + ", wanted printable text")
    print(json.dumps(value, ensure_ascii=False))


def need_node_id(value):
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", value):
        stop(USAGE, "found the node_id " + repr(value) + ", wanted 1 to 63 of a-z, 0-9 and -, with no - at either end")


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
        found = None
    found = found or {}  # an agent of an older release that has not said anything yet says null
    if what in ("error", "error_code"):
        # Of an agent that runs now, not of one before it.
        error = found.get("last_error") if found.get("running") else None
        print((error or {}).get("text" if what == "error" else "code") or "")
    elif what == "holds":
        print(bool(found.get("tasks") or found.get("undelivered")))
    else:
        value = found.get(what)
        print("" if value is None else value)


globals()[sys.argv[1]](*sys.argv[2:])
