"""Switch to what is staged, or go back; what does not come up is taken back here and now."""

import contextlib
import datetime
import json
import os
import re
import shutil
import time
import urllib.request
from pathlib import Path

from host import (
    BEFORE,
    COMMAND,
    JOURNAL,
    PLACES,
    POLL_S,
    PROGRAM,
    RELEASES,
    STAGED,
    UNIT,
    Refusal,
    active,
    backups,
    contents,
    install,
    journalled,
    lacks_command,
    link,
    owner,
    prune,
    put_link,
    run,
    said,
    save,
    started_with,
    systemctl,
    whole,
    write,
)


def tool(words, release, *command, config=None):
    """A command of a release's own on the database, as the server's user; its JSON."""
    argv = ["runuser", "-u", words["user"], "--", str(RELEASES / release / "venv" / "pex"), "server", *command]
    done = run(*argv, "-o", "json", "--config", str(config or PLACES["server.yaml"]), check=True)
    return json.loads(done.stdout)


def database(files):
    """What of the settings says which database is meant."""
    text = files.get("server.yaml", b"").decode(errors="replace")
    found = dict(re.findall(r"^(database_url|state_dir):\s*[\"']?([^\"'\n]*)", text, re.M))
    return found.get("database_url") or found.get("state_dir") or "default"


def differences(release, files):
    """What is to be done, in words; nothing: all is as it should be."""
    found = []
    if link("current") != release:
        found.append(f"release {link('current') or 'none'} -> {release}")
    there = contents()
    found += [f"{PLACES[name]}" for name in sorted(files) if there.get(name) != files[name]]
    if not found and not (active() and started_with(files, release)):
        found.append("the service runs with something else" if active() else "the service does not run")
    if run("systemctl", "is-enabled", "--quiet", UNIT).returncode != 0:
        found.append("the service is not enabled")
    if lacks_command():
        found.append(str(COMMAND))
    return found


def try_out(words):
    """What is staged, as the new release sees it: the settings, and the migration on a copy of the database."""
    files = contents(STAGED)
    if not differences(words["release"], files):
        return said("unchanged", None, words["release"], "")
    old, staged = link("current"), STAGED / "server.yaml"
    # Where the key will be, it is not yet.
    os.environ["HETEROFLEET_API_KEY_FILE"] = str(STAGED / "server.key")
    as_user = ("runuser", "-u", words["user"], "--")
    run(
        *as_user,
        str(RELEASES / words["release"] / "venv" / "pex"),
        "server",
        "config",
        "--config",
        str(staged),
        check=True,
    )
    del os.environ["HETEROFLEET_API_KEY_FILE"]
    other_database(words, old, files)
    if not words["rehearse"] or old == words["release"]:
        return said("changed", old, words["release"], "not rehearsed")
    found = tool(words, words["release"], "migrate", "--rehearse", config=staged)
    if found["before"] is None:
        return said("changed", old, words["release"], "there is no database yet")
    text = f"a copy of {found['size'] / 1e6:.1f} MB went from schema {found['before']} to {found['after']}"
    return said("changed", old, words["release"], f"{text} in {found['seconds']:g} s")


def switch(words):
    """To the release and to what is staged."""
    if not STAGED.is_dir():
        return said("changed", None, words["release"], "nothing is installed here yet")
    files = contents(STAGED)
    plan = differences(words["release"], files)
    if words["check"] or (not plan and not JOURNAL.exists()):
        return said("unchanged" if not plan else "changed", link("current"), words["release"], ", ".join(plan))
    other_database(words, link("current"), files)
    return change(words, "switch", words["release"], files)


def other_database(words, old, files):
    """Refuse to leave a database that is in use."""
    if old and database(contents()) != database(files) and not words["new_database"]:
        state = tool(words, old, "migrate", "--show")
        if state["schema"] is not None:
            raise Refusal(
                "the settings name another database than the one in use, and a server with another database is "
                "another control plane: nodes would leave all work alone. Say control_plane_new_database: true if "
                "that is meant"
            )


def rollback(words):
    """To the release before, with the settings that it had and a database that it can serve."""
    cut = journalled()
    old, to = link("current"), words["release"] or link("previous")
    if cut.get("do") == "rollback":
        to = cut["to"]  # the links may have changed places already
    if to is None or not whole(to):
        raise Refusal(f"there is no whole release {to or 'before this one'} in {RELEASES} to go back to")
    if to == old and not cut:
        return said("unchanged", old, to, "it is the release in force")
    # The key stays: nodes have the one of today.
    files = {**contents(), **contents(RELEASES / to)}
    other_database(words, old, files)
    state = tool(words, to, "migrate", "--show")
    copy = None
    if not state["known"]:
        copy = next((meta for meta in backups(words) if meta["release"] == to and meta["head"] == meta["schema"]), None)
        if copy is None:
            raise Refusal(
                f"the database is at schema {state['schema']}, which {to} does not know, and no backup in "
                f"{words['backups']} was made with {to}"
            )
        if copy["control_plane_id"] != state["control_plane_id"]:
            raise Refusal(f"the backup {copy['file']} is another control plane's")
        if copy["revision"] != state["revision"] and not words["loses_data"]:
            raise Refusal(lost(copy, state))
    if words["check"]:
        return said("changed", old, to, f"with the database of {copy['file']}" if copy else "the database stays")
    return change(words, "rollback", to, files, copy)


def lost(copy, state):
    return (
        f"since the backup of {copy['release']} (revision {copy['revision']}) the database has gone on to revision "
        f"{state['revision']}: what was done meanwhile would be lost. control_plane_rollback_loses_data: true goes "
        "back all the same; the server then says rolled_back, and heterofleet server accept-restore takes from the "
        "nodes what they hold"
    )


def change(words, do, to, files, copy=None):
    """Stop, copy the database, install, start, wait; what does not come up is taken back."""
    journal = journalled()
    if (journal.get("do"), journal.get("to")) != (do, to):
        if not journal or link("current") != journal["from"]:
            shutil.rmtree(BEFORE, ignore_errors=True)
            install(words, contents(), BEFORE)
        journal = {"do": do, "from": link("current"), "to": to, "previous": link("previous"), "backup": None}
        save(journal)
    old = journal["from"]
    try:
        if old and old != to and journal["backup"] is None:
            journal["backup"] = secure(words, old, to)
            save(journal)
        if copy is not None:
            systemctl("stop", UNIT)
            left = journal["backup"]
            if left["revision"] != copy["revision"] and not words["loses_data"]:
                raise RuntimeError(lost(copy, left))  # in the moment before it stopped
            tool(words, old, "restore", copy["file"])
        install(words, files)
        put_link("current", to)
        if old != to:
            put_link("previous", old)
        if lacks_command():
            COMMAND.symlink_to(PROGRAM)
        start(words)
    except Exception as error:
        reason = str(error)
        if old is None:
            run("systemctl", "stop", UNIT)
            JOURNAL.unlink(missing_ok=True)
            return said("failed", None, to, reason)
        back = take_back(words, journal, to, files)
        JOURNAL.unlink(missing_ok=True)
        return said("failed" if back else "restored", old, to, f"{reason}; {back}" if back else reason)
    install(words, {name: data for name, data in files.items() if name != "server.key"}, RELEASES / to)
    JOURNAL.unlink(missing_ok=True)
    prune(words)
    return said("changed", old, to, "", journal["backup"])


def secure(words, old, to):
    """A copy of the database as the old release leaves it. When the next one would migrate it, or it is replaced,
    nothing may be written after the copy: the server stops first."""
    state = tool(words, old, "migrate", "--show")
    if state["schema"] is None:
        return None
    if tool(words, to, "migrate", "--show")["head"] != state["schema"]:
        systemctl("stop", UNIT)
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    folder = Path(words["backups"])
    suffix = "sql" if database(contents()).startswith("postgres") else "db"
    file = folder / f"{stamp}_{old}_{state['schema']}.{suffix}"
    meta = {**tool(words, old, "backup", str(file)), "release": old, "made_at": stamp}
    write(folder / f"{file.name}.json", json.dumps(meta).encode(), 0o600, owner(words))
    return meta


def take_back(words, journal, to, files):
    """The old server with the old settings and its database again; what stands in the way, in words. ``files``: the
    new settings."""
    old, copy = journal["from"], journal["backup"]
    try:
        run("systemctl", "stop", UNIT)
        # First: the copy is of the database that these settings name, and belongs into no other.
        install(words, contents(BEFORE))
        state = tool(words, old, "migrate", "--show")
        if copy and (not state["known"] or state["revision"] < copy["revision"]):
            if state["revision"] > copy["revision"]:
                install(words, files)
                run("systemctl", "start", UNIT)
                return (
                    f"the new server had served: the database is at revision {state['revision']}, the backup "
                    f"{copy['file']} at {copy['revision']}. It was left as it is, with {to}; rollback with "
                    "control_plane_rollback_loses_data goes back all the same"
                )
            tool(words, old, "restore", copy["file"])
        put_link("current", old)
        put_link("previous", journal["previous"])
        start(words)
    except Exception as error:
        return f"and the way back failed: {error}"
    return None


def start(words):
    """Restart and wait until it is ready; RuntimeError says why it is not."""
    if run("systemctl", "show", "--property=NeedDaemonReload", "--value", UNIT).stdout.strip() == "yes":
        systemctl("daemon-reload")
    systemctl("enable", "--quiet", UNIT)
    run("systemctl", "reset-failed", UNIT)
    since = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
    systemctl("restart", UNIT)
    deadline = time.monotonic() + words["wait_s"]
    while time.monotonic() < deadline:
        state = dict(
            line.split("=", 1)
            for line in systemctl("show", "--property=ActiveState,NRestarts", UNIT).stdout.splitlines()
        )
        if state["ActiveState"] == "failed" or int(state["NRestarts"] or 0) > 2:
            raise RuntimeError(f"the new server does not start: {last_words(since)}")
        with contextlib.suppress(OSError, ValueError):
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(ready_url(), timeout=5) as answer:
                if json.load(answer)["status"] == "ready":
                    return
        time.sleep(POLL_S)
    raise RuntimeError(f"the new server was not ready after {words['wait_s']} s: {last_words(since)}")


def ready_url():
    """Where the installed settings have the server listen, as this host reaches it."""
    found = re.search(rb"^listen:\s*[\"']?([^\"'\s]+)", PLACES["server.yaml"].read_bytes(), re.M)
    host, _, port = (found[1].decode() if found else "0.0.0.0:3333").rpartition(":")
    here = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104
    return f"http://{here}:{port}/readyz"


def last_words(since):
    lines = run("journalctl", "--unit", UNIT, "--since", since, "--output=cat", "--lines=60").stdout.splitlines()
    ours = [
        line for line in lines if line.strip() and not re.match(r"(Start|Stopp|Schedul)|heterofleet-server\.", line)
    ]
    return " / ".join(ours[-3:]) or "it said nothing"
