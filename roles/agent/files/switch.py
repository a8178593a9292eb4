"""From files in their places to an agent that the control plane has heard: links, restart, the first beat.

All of it is one process on the host, which takes back by itself what it began: a controller that dies changes nothing.
"""

import os
import re
import shutil
import time

import node
import record
import restore
import undo

CONFIRM_S, ENDS_S = 60, 45


def switch(run, release, sha256, arch, levelled=False, restart=True):
    """Everything lies there but the links. ``restart``: also when what runs is this release already."""
    with node.locked():
        undo.need_own(run)
        node.WARNINGS[:0] = record.lines("warnings")
        try:
            return _switch(release, sha256, arch, levelled, restart)
        except OSError as error:
            why = f"{error.filename}: {error.strerror}{undo.obstacle(error.filename)}"
            raise undo.failed(node.STEP, why) from None
        except node.Refusal as error:
            raise undo.failed(error.code, str(error)) from None


def _switch(release, sha256, arch, levelled, restart):
    folder = node.RELEASES + "/" + release
    undo.need_whole(folder, sha256)
    undo.need_arch(folder, arch)
    put_copy(folder + "/agent.yaml", 0o600, node.SETTINGS)
    put_copy(folder + "/" + node.UNIT, 0o644, node.UNIT_FILE)
    before = point_links(release)
    node_id = start(release, levelled) if restart else None
    finish(release, before, sha256)
    other_copies()
    return {"node_id": node_id, "before": before}


def earlier(run, release, machines):
    """Back to a release that is there, with the settings and the unit that it was installed with."""
    folder = node.RELEASES + "/" + release
    undo.begin(run, release)
    with node.locked():
        undo.need_own(run)
        try:
            undo.need_whole(folder, release.rpartition("-")[2])
            undo.need_arch(folder, machines.get(os.uname().machine, ""))
            put_copy(node.SETTINGS, 0o600, folder + "/agent.yaml")
            code, _, said = node.agent(folder, "config", "check", "--config", node.SETTINGS)
            if code:
                raise node.Refusal(node.STEP, f"{release} does not take its settings any more: {said.strip()}")
            if os.path.isfile(folder + "/" + node.UNIT):
                put_copy(node.UNIT_FILE, 0o644, folder + "/" + node.UNIT)
            before = point_links(release)
            node_id = start(release, False)
            finish(release, before, release.rpartition("-")[2])
        except OSError as error:
            why = f"{error.filename}: {error.strerror}{undo.obstacle(error.filename)}"
            raise undo.failed(node.STEP, why) from None
        except node.Refusal as error:
            raise undo.failed(error.code, str(error)) from None
        return {"node_id": node_id, "before": before}


# Files and links


def put_secret(run, path, text):
    """What is a secret, or may hold one, into its file; it came on standard input, so no other file has held it on the
    way."""
    with node.locked():
        undo.need_own(run)
        put(path, 0o600, text.encode())
        return {}


def put_copy(path, mode, source):
    with open(source, "rb") as file:
        put(path, mode, file.read())


def put(path, mode, content):
    """The whole file or none of it."""
    if node.is_file(path, mode) and node.read(path) == content:
        return
    record.remove(path + ".new")
    handle = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        os.fchmod(handle, mode)
    os.replace(path + ".new", path)


def point(path, target):
    """A symbolic link, switched in one step."""
    if node.link(path) != target:
        record.remove(path + ".new")
        os.symlink(target, path + ".new")
        os.replace(path + ".new", path)


def point_links(release):
    """One rename makes this release the one that runs from the next start on; the one before is remembered."""
    folder = node.RELEASES + "/" + release
    need_good_unit(folder + "/" + node.UNIT)
    restore_labels(folder, node.ETC, node.UNIT_FILE)
    record.settle(folder, node.ETC, node.UNIT_FILE)
    before = node.target(node.CURRENT)
    point(node.CURRENT, "releases/" + release)
    if before and before != release and os.path.isfile(f"{node.RELEASES}/{before}/{node.PROGRAM}"):
        point(node.PREVIOUS, "releases/" + before)
        os.utime(node.RELEASES + "/" + before)
    program = node.CURRENT + "/" + node.PROGRAM
    if not os.path.lexists(node.COMMAND) or node.link(node.COMMAND) == program:
        try:
            point(node.COMMAND, program)
        except OSError:
            node.warn("cannot make the link " + node.COMMAND)
    if not node.is_enabled() and node.service("enable", "--quiet", "--no-reload", node.UNIT)[0]:
        raise node.Refusal(node.STEP, "cannot enable " + node.UNIT)
    restore.reload_if_needed()  # newer systemd wants one for the link of "enable", too
    return before


def need_good_unit(path):
    """systemd's checker ends with 0 for words that it does not know: its messages are what counts."""
    if not shutil.which("systemd-analyze", path=node.PATH) or not os.path.isfile(path):
        return
    _, out, said = node.run(["systemd-analyze", "verify", "--man=no", path])
    # The program's link is new only after this.
    about = [line for line in (out + said).splitlines() if node.UNIT in line and "is not executable" not in line]
    if about:
        raise node.Refusal(node.STEP, "systemd does not take the unit: " + "; ".join(about))


def restore_labels(*places):
    if shutil.which("restorecon", path=node.PATH):
        if node.run(["restorecon", "-RF", *places])[0]:
            node.warn("restorecon could not set the SELinux labels of " + " ".join(places))
    elif node.run(["getenforce"])[1].strip() == "Enforcing":
        node.warn("SELinux is enforcing and restorecon is missing: if the start fails, look at the labels first")


# The agent


def start(release, levelled):
    """Returns the node's id when the control plane has confirmed a beat of the very process that was started now."""
    pid = node.properties("MainPID")["MainPID"]
    record.mark("touched", pid + "\n")
    started = int(time.time())
    if levelled:
        # A build is unpacked once and then believed: unpack it again, and not under an agent that runs. The time for
        # the heartbeat begins after that.
        if not restore.stop_firmly(25):
            raise node.Refusal(node.STEP, "cannot stop " + node.UNIT)
        shutil.rmtree(node.CACHE)
        os.mkdir(node.CACHE)
        os.chmod(node.CACHE, 0o755)
        node.agent(node.RELEASES + "/" + release, "version")
        pid = "0"
    node.service("reset-failed", node.UNIT)
    if node.service("restart", "--no-block", node.UNIT)[0]:
        raise node.Refusal(node.STEP, "cannot start " + node.UNIT)
    end = time.monotonic() + ENDS_S
    while pid != "0" and node.properties("MainPID")["MainPID"] == pid:
        if time.monotonic() > end:
            raise node.Refusal(node.STEP, "the agent from before does not end")
        time.sleep(0.2)
    return confirm(release, started)


def confirm(release, started):
    waited, end, said = f"within {CONFIRM_S} s", time.monotonic() + CONFIRM_S, {}
    while time.monotonic() < end:
        heard, said = node.status(wait_s=2)
        now = node.properties("MainPID", "SubState", "NRestarts")
        if heard and str(said.get("pid")) == now["MainPID"]:
            runs = str(said.get("version"))
            if release.rpartition("-")[0] == runs.replace("/", "-", 1):
                return said.get("node_id")
            waited = f"of {release}: the agent that runs says that it is {runs}"
            break
        error = (said.get("last_error") or {}) if said.get("running") else {}
        if error.get("code") == "bad_api_key":
            raise node.Refusal(3, "the control plane refuses the key: {}".format(error.get("text")))
        if now["SubState"] == "failed" or (now["SubState"] == "auto-restart" and now["NRestarts"] not in ("", "0")):
            waited = "because the agent ends whenever it is started"
            break
        time.sleep(0.2)
    error = (said.get("last_error") or {}).get("text") if said.get("running") else ""
    reason = "the control plane confirmed no heartbeat " + waited + (": " + error if error else "")
    raise node.Refusal(node.BEAT, reason + journal(started))


def journal(since):
    """The end of what the agent wrote since then."""
    words = ["--no-pager", "--quiet", "-o", "cat", "-n", "15", "--since", f"@{since}", "-u", node.UNIT]
    _, said, _ = node.run(["journalctl", *words])
    said = re.sub(r"(?m)^", "    ", said.rstrip("\n"))
    return f"\nthe end of its journal (journalctl -u {node.UNIT}):\n{said}" if said.strip() else ""


def finish(release, before, sha256):
    """What is confirmed stays. The release that ran before keeps the settings that it ran with."""
    undo.need_whole(node.RELEASES + "/" + release, sha256)
    kept, old = record.FILES + node.SETTINGS, node.RELEASES + "/" + before
    if before and before != release and os.path.isfile(old + "/agent.yaml") and os.path.isfile(kept):
        differs = node.read(kept) != node.read(old + "/agent.yaml")
        if differs and node.agent(old, "config", "check", "--config", kept)[0] == 0:
            put_copy(old + "/agent.yaml", 0o600, kept)
    record.forget()
    prune_releases(release)


def prune_releases(release):
    """The present release, the one before and one more stay, and what still runs."""
    running = node.running_release(node.properties("MainPID")["MainPID"])
    stay = {release, node.target(node.PREVIOUS), running}
    names = [name for name in os.listdir(node.RELEASES) if name not in stay and not name.startswith(".")]
    names.sort(key=lambda name: os.stat(node.RELEASES + "/" + name).st_mtime, reverse=True)
    for name in names[1:]:
        record.remove(node.RELEASES + "/" + name)
    restore.prune_cache()


def other_copies():
    """Programs of our name that a person would start instead."""
    named = {os.path.realpath(node.CURRENT + "/" + node.PROGRAM)}
    for folder in node.PATH.split(":"):
        copy = folder + "/" + node.PROGRAM
        if os.access(copy, os.X_OK) and os.path.realpath(copy) not in named:
            named.add(os.path.realpath(copy))
            node.warn(f"there is another copy, {copy}; the service runs {node.CURRENT}/{node.PROGRAM}")
