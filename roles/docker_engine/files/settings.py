"""The engine's settings file: lines merged into it, and the way back."""

import json
import os
import re
import shutil

import engine

BEFORE = ".before-heterofleet"
"""The file as it was (empty: there was none), while the engine has not taken the new one yet."""
FLAGS = {
    "add-runtime": "runtimes",
    "dns-opt": "dns-opts",
    "exec-opt": "exec-opts",
    "graph": "data-root",
    "host": "hosts",
    "insecure-registry": "insecure-registries",
    "label": "labels",
    "log-opt": "log-opts",
    "registry-mirror": "registry-mirrors",
    "storage-opt": "storage-opts",
}
"""Options of dockerd that have another name in the file."""
PASSWORD = re.compile(r"://[^/@\s\"]*:[^/@\s\"]*@")


def check(wanted):
    """Refuses what would keep the engine from starting, or open a way in."""
    if PASSWORD.search(json.dumps(wanted)):
        raise engine.Refusal(
            "docker_engine_daemon has a password in a URL: put it into a drop-in of docker.service instead"
        )
    kinds = {"live-restore": bool, "data-root": str, "registry-mirrors": list, "insecure-registries": list}
    for name, kind in kinds.items():
        if name in wanted and not isinstance(wanted[name], kind):
            raise engine.Refusal(f"{name}: found {wanted[name]!r}, wanted a {kind.__name__}")
    if not wanted.get("data-root", "/").startswith("/"):
        raise engine.Refusal("data-root: found {!r}, wanted a whole path".format(wanted["data-root"]))
    for url in wanted.get("registry-mirrors", ()):
        if not re.fullmatch(r"https?://[^/\s]+/?", str(url)):
            raise engine.Refusal(f"registry-mirrors: found {url!r}, wanted http(s)://HOST[:PORT]")
    for name in wanted.get("insecure-registries", ()):
        if "://" in str(name):
            raise engine.Refusal(
                f"insecure-registries: found {name!r}, wanted HOST[:PORT] or a network, without a scheme"
            )
    if "hosts" in wanted:
        raise engine.Refusal(
            "hosts: the unit of docker.service says where the engine listens, and a node opens no port"
        )
    found = engine.process()
    for word in found[1] if found else ():
        option = word.lstrip("-").partition("=")[0]
        name = FLAGS.get(option, option)
        if word.startswith("--") and name in wanted:
            raise engine.Refusal(
                f"{name}: the engine was started with --{option}, and would not start with both: "
                "take it out of its unit first"
            )


def merged(here, wanted):
    whole = dict(here)
    for name, value in wanted.items():
        both = isinstance(value, dict) and isinstance(here.get(name), dict)
        whole[name] = merged(here[name], value) if both else value
    return whole


def write(asked):
    """Merge the wanted lines into the file."""
    wanted = asked["daemon"]
    check(wanted)
    file = engine.file_of_the_engine()
    before, here = read(file)
    whole = merged(here, wanted)
    lines = sorted(name for name in wanted if name not in here or here[name] != whole[name])
    answer = {"changed": bool(lines), "file": str(file), "lines": lines, "pending": []}
    if engine.process() is not None:
        answer["pending"] = engine.pending(wanted, engine.ask(engine.where(asked), "/info"), written=bool(lines))
    if lines and not asked["preview"]:
        replace(file, before, json.dumps(whole, indent=2) + "\n")
    return answer


def read(file):
    """Its bytes (None: there is none), and the lines in it."""
    try:
        before = file.read_bytes()
        here = json.loads(before.decode("utf-8").strip() or "{}")
    except FileNotFoundError:
        return None, {}
    except ValueError as error:
        raise engine.Refusal(
            f"{file} is no JSON ({error}): put it right, or move it away; it was not touched"
        ) from error
    if not isinstance(here, dict):
        raise engine.Refusal(f"{file} holds no map: put it right, or move it away; it was not touched")
    return before, here


def replace(file, before, lines):
    file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    mode = 0o644 if before is None else file.stat().st_mode & 0o777
    beside, kept, found = (
        file.with_name(file.name + ".heterofleet-new"),
        file.with_name(file.name + BEFORE),
        engine.process(),
    )
    put(beside, lines.encode(), mode)
    try:
        valid(beside)
        # The file that the engine at work has read: it is the way back.
        if kept.exists() and found is not None and engine.started(found[0]) > kept.stat().st_mtime:
            kept.unlink()
        if not kept.exists():
            put(kept, before or b"", mode)
        beside.replace(file)
    finally:
        if beside.exists():
            beside.unlink()


def put(path, content, mode):
    handle = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "wb") as opened:
        os.fchmod(handle, mode)
        opened.write(content)
        opened.flush()
        os.fsync(handle)


def valid(path):
    """The engine's own opinion, where it has one (from 23.0 on)."""
    if shutil.which("dockerd") is None:
        return
    done = engine.run("dockerd", "--validate", "--config-file", str(path))
    if done.returncode != 0 and b"unknown flag" not in done.stderr:
        raise engine.Refusal("the engine does not take these lines, nothing was changed: " + engine.text(done.stderr))
