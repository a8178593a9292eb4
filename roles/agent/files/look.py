"""The one look at a host: reads, changes nothing, and answers on a bare host, an installed one and half of one."""

import os
import re
import time

import node

# Settings that an installation writes itself; all other lines of the file stay.
BLOCK = (
    "written_for",
    "server_url",
    "api_key",
    "api_key_file",
    "ca_file",
    "allow_plain_http",
    "node_id",
    "mgmt_addr",
    "labels",
)
SECRET = re.compile(r"^(api_key|proxy)[ \t]*:", re.MULTILINE)


def look(machines, manifest=None, key=None, unit="", ca="", bases=False, secrets=False, tasks=False, wait_s=0):
    """``manifest``: the builds on offer; ``unit`` and ``ca``: the sha256 that these files should have; ``bases``: every
    settings file that an installation could go on from; ``tasks``: what the engine has of tasks, too. What may hold a
    secret is told only with ``secrets``."""
    busy = ""
    if wait_s:
        try:
            with node.locked(wait_s):
                pass
        except node.Refusal as error:
            busy = str(error)
    machine = os.uname().machine
    arch = machines.get(machine, "")
    found = {"machine": machine, "arch": arch, "busy": busy, **_host(), **_installed(), **_running(), **_settings()}
    wanted = _wanted(manifest, arch) if manifest else {}
    found["same"] = _same(wanted, unit, ca, key, found) if wanted else {}
    answer = {"found": found, "wanted": wanted}
    if tasks:
        answer["tasks"] = node.task_containers()
    if secrets:
        answer["bases"] = [_base(path) for path in (_bases() if bases else [node.SETTINGS])]
    return answer


def _host():
    """What stands against any installation, first of all."""
    refused = ""
    if os.geteuid() != 0:
        refused = "this must run as root: set become"
    elif not os.path.isdir("/run/systemd/system"):
        refused = "this host was not started by systemd (there is no /run/systemd/system)"
    elif os.path.islink(node.OPT):
        text = "%s is a symbolic link to %s; wanted a folder (mount --bind puts it on another disk)"
        refused = text % (node.OPT, node.link(node.OPT))
    elif os.path.lexists(node.OPT) and not os.path.isdir(node.OPT):
        refused = f"{node.OPT} is no folder; move it out of the way"
    # What a directory is in the way of, or a file of a directory: only levelling moves somebody's things aside.
    files = [node.SETTINGS, node.KEY_FILE, node.CA_FILE, node.UNIT_FILE]
    folders = [node.ETC, node.RELEASES, node.CACHE]
    links = [node.CURRENT, node.PREVIOUS]
    in_the_way = [path for path in files if os.path.isdir(path)]
    in_the_way += [path for path in folders if os.path.lexists(path) and not os.path.isdir(path)]
    in_the_way += [path for path in links if os.path.lexists(path) and not os.path.islink(path)]
    return {"refused": refused, "in_the_way": in_the_way, "cut_short": os.path.isdir(node.UNDO)}


def parse(release):
    """A release folder's name: what it says of the build."""
    found = re.fullmatch(r"(.+?)-([^-]+)(-dirty)?-([0-9a-f]{8})", release)
    version, commit, dirty, _ = found.groups() if found else ("", "", None, "")
    return {"version": version, "commit": commit, "dirty": bool(dirty) or version == "dev"}


def _installed():
    release = node.target(node.CURRENT)
    program = f"{node.RELEASES}/{release}/{node.PROGRAM}"
    sha256 = node.digest(program) if release else ""
    try:
        names = sorted(os.listdir(node.RELEASES))
    except OSError:
        names = []
    whole = bool(sha256) and sha256[:8] == release[-8:] and os.access(program, os.X_OK)
    whole = whole and node.link(node.CURRENT) == "releases/" + release
    whole = whole and all(os.path.isfile(path) for path in (node.SETTINGS, node.UNIT_FILE))
    rolled = [name for name in names if os.path.isfile(f"{node.RELEASES}/{name}/agent.yaml")]
    return {
        "release": release,
        **parse(release),
        "sha256": sha256,
        "md5": node.digest(program, "md5") if release else "",
        "whole": whole,
        "previous": node.target(node.PREVIOUS),
        "releases": rolled,
        "command": node.link(node.COMMAND) or ("somebody else's" if os.path.lexists(node.COMMAND) else ""),
    }


def _running():
    shown = node.properties("MainPID", "UnitFileState", "NeedDaemonReload")
    said = node.said_status()
    pid = shown["MainPID"]
    here = pid not in ("", "0") and str(said.get("pid")) == pid
    return {
        "running_release": node.running_release(pid),
        "started_at": _started_at(pid),
        "enabled": shown["UnitFileState"] == "enabled",
        "need_reload": shown["NeedDaemonReload"] == "yes",
        "node_id": said.get("node_id") or "",
        # Of the agent that runs now, not of one before it.
        "registered": here and said.get("registered") is True,
    }


def _started_at(pid):
    """When a process was started, by the wall clock; 0 when it is not known."""
    words = (node.read(f"/proc/{pid}/stat") or b"").rpartition(b")")[2].split()
    boot = re.search(rb"^btime (\d+)", node.read("/proc/stat") or b"", re.MULTILINE)
    if len(words) < 20 or not boot:
        return 0
    return int(boot.group(1)) + int(words[19]) / os.sysconf("SC_CLK_TCK")


def _settings():
    return {"settings_sha256": node.digest(node.SETTINGS) if node.is_file(node.SETTINGS, 0o600) else ""}


def _wanted(manifest, arch):
    build = manifest["builds"].get(arch)
    if not build:
        return {"arch": arch, "release": "", "has": sorted(manifest["builds"])}
    mark = "-dirty" if manifest["dirty"] else ""
    release = "{}-{}{}-{}".format(manifest["version"], manifest["commit"], mark, build["sha256"][:8])
    wanted = {"arch": arch, "release": release, "file": build["file"], "sha256": build["sha256"], "size": build["size"]}
    return {**wanted, "dirty": bool(manifest["dirty"]) or manifest["version"] == "dev"}


def _same(wanted, unit, ca, key, found):
    """What of the wanted installation is there, whole, and root's; and whether that is what runs."""
    release = node.RELEASES + "/" + wanted["release"]
    place = node.scalar("api_key_file", node.settings_text())
    kept = place if key is None and place else node.KEY_FILE
    changed_at = max(_changed_at(node.SETTINGS), _changed_at(kept), _changed_at(node.CA_FILE))
    return {
        "build": node.is_file(release + "/" + node.PROGRAM, 0o755)
        and node.digest(release + "/" + node.PROGRAM) == wanted.get("sha256"),
        "key": (key is None and os.path.isfile(kept))
        or (node.is_file(node.KEY_FILE, 0o600) and node.read(node.KEY_FILE) == (key or "").encode()),
        "ca": not ca or (node.is_file(node.CA_FILE, 0o644) and node.digest(node.CA_FILE) == ca),
        "unit": node.is_file(node.UNIT_FILE, 0o644) and node.digest(node.UNIT_FILE) == unit,
        "copies": node.is_file(release + "/" + node.UNIT, 0o644)
        and node.is_file(release + "/agent.yaml", 0o600)
        and node.digest(release + "/" + node.UNIT) == unit
        and node.read(release + "/agent.yaml") == node.read(node.SETTINGS),
        "link": node.link(node.CURRENT) == "releases/" + wanted["release"],
        "command": bool(found["command"]),
        "enabled": found["enabled"] and not found["need_reload"],
        # By the process itself: a run that was cut between the copy and the restart left an old one.
        "runs": found["running_release"] == wanted["release"] and changed_at < found["started_at"] + 1,
    }


def _changed_at(path):
    """When a file last changed; nothing when that is said to be later than now."""
    try:
        changed = os.stat(path).st_mtime
    except OSError:
        return 0
    return changed if changed < time.time() else 0


def _bases():
    """The present settings, else those of an installation that worked, else none."""
    found = [node.SETTINGS] if os.path.isfile(node.SETTINGS) else []
    folders = [node.CURRENT, node.PREVIOUS]
    try:
        folders += [node.RELEASES + "/" + name for name in sorted(os.listdir(node.RELEASES))]
    except OSError:
        pass
    return found + [one + "/agent.yaml" for one in folders if os.path.isfile(one + "/agent.yaml")] + [os.devnull]


def _base(path):
    """A settings file in parts: what an installation writes anew, letter for letter, and what stays."""
    text = node.settings_text(path)
    values, kept, inside = {}, [], ""
    for line in text.split("\n")[:-1] if text.endswith("\n") else text.split("\n") if text else []:
        name = line.partition(":")[0]
        if line.startswith("#:"):
            continue
        if ":" in line and name in BLOCK:
            inside = name
            values[name] = [line.partition(":")[2].lstrip(" \t")]
        elif inside and line[:1] in (" ", "\t", "-"):
            values[inside].append(line)
        else:
            inside = ""
            kept.append(line)
    raw = {name: "\n".join(lines).rstrip("\n") for name, lines in values.items()}
    scalars = {name: node.scalar(name, text) for name in ("server_url", "api_key_file", "api_key")}
    own = scalars["api_key_file"]
    own = own if own and os.path.isfile(own) and os.path.getsize(own) else ""
    has_key = bool(own) or (os.path.isfile(node.KEY_FILE) and os.path.getsize(node.KEY_FILE) > 0)
    return {
        "path": path,
        "values": raw,
        "kept": "".join(line + "\n" for line in kept),
        "server_url": scalars["server_url"],
        "key_place": own or node.KEY_FILE,
        "has_key": has_key,
        "secret": bool(SECRET.search(text)),
    }
