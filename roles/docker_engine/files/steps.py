"""The steps that the role asks for: ``python3 - STEP``. Prints JSON; a refusal is one sentence on standard error and
exit code 1. With ``preview`` a step says what it would do, and does nothing.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

import engine
import settings

WAIT_S = 60

RELOADED = {
    *("debug", "default-runtime", "insecure-registries", "labels", "live-restore", "registry-mirrors", "runtimes"),
}
"""What the engine takes at a reload, of the lines that it tells of afterwards."""


def install(asked):
    """The first candidate that the host's sources have, started and enabled."""
    source, words = asked["source"], []
    if not source["candidates"]:
        raise engine.Refusal(f"how {engine.systems()[0]} brings Docker Engine is not known: install it by hand")
    if not asked["preview"]:
        done = unbroken(source["refresh"])
        words = [engine.text(done.stdout)] if done.returncode else []  # offline, what is known already may do
    packages = next((names for names in source["candidates"] if has(source, names[0])), None)
    if packages is None and asked["preview"]:
        return {"changed": True, "packages": None}
    if packages is None:
        wanted = ", ".join(names[0] for names in source["candidates"])
        more = " ({} said: {})".format(" ".join(source["refresh"]), words[0]) if words else ""
        raise engine.Refusal(
            f"the package sources of this host bring no Docker Engine (looked for {wanted}): set up one that does{more}"
        )
    if not asked["preview"]:
        done = unbroken([*source["install"], *packages])
        if done.returncode != 0:
            raise engine.Refusal(f"{source['install'][0]} ended with {done.returncode}: {tail(done.stdout)}")
        engine.run("systemctl", "enable", "--quiet", "--now", "docker.service")
        wait(asked, "was installed and does not answer")
        forget()
    return {"changed": True, "packages": packages}


def has(source, package):
    done = engine.run(*source["has"], package)
    said = engine.text(done.stdout)
    line = source.get("has_line")
    if line:
        return re.search(line.replace("{}", re.escape(package)), said, re.MULTILINE) is not None
    return done.returncode == 0 and bool(said)


def unbroken(words):
    """A package manager that is ended half-way leaves a machine that somebody must repair, so it is not."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(os.environ, DEBIAN_FRONTEND="noninteractive"),
        check=False,
    )


def apply(asked):
    """Have the engine take the lines that are pending; puts the file back when it does not start with them."""
    found = engine.look(asked)
    names = sorted({*found["pending"], *(asked["pending"] if asked["preview"] else ())})
    if not names:
        return {"changed": False, "how": "nothing is pending"}
    reload = set(names) <= RELOADED
    if not reload and not asked["restart_running"]:
        held = found["containers"] if "data-root" in names else found["running"]
        if held:
            return {"changed": False, "how": "waits", "held": held, "tasks": found["tasks"]}
    how = "reload" if reload else "restart"
    if asked["preview"]:
        return {"changed": True, "how": how}
    done = engine.run("systemctl", how, "docker.service")
    try:
        if done.returncode != 0:
            raise engine.Refusal(f"systemctl {how} docker.service ended with {done.returncode}: {journal()}")
        wait(asked, "does not answer after a " + how)
        wait_for_the_lines(asked, how)
    except engine.Refusal as error:
        raise engine.Refusal(f"{error}. {put_back(asked, how)}") from error
    forget()
    return {"changed": True, "how": how}


def wait_for_the_lines(asked, how):
    """A reload is not over when systemctl is."""
    end = time.monotonic() + WAIT_S
    while True:
        left = engine.look(asked)["pending"]
        if not left:
            return
        if time.monotonic() > end:
            raise engine.Refusal("Docker has not taken {} after a {}".format(", ".join(left), how))
        time.sleep(0.2)


def put_back(asked, how):
    """By the same way: what runs in an engine that was only to reload must not be ended by a restart."""
    file = engine.file_of_the_engine()
    kept = file.with_name(file.name + settings.BEFORE)
    if not kept.exists():
        return f"{file} is as it was before"
    if kept.stat().st_size:
        kept.replace(file)
    else:
        file.unlink()
        kept.unlink()
    engine.run("systemctl", "reset-failed", "docker.service", "docker.socket")
    engine.run("systemctl", how, "docker.service")
    try:
        wait(asked, "does not answer")
    except engine.Refusal:
        return f"{file} was put back, and the engine does not start with it either"
    return f"{file} was put back, and the engine is at work with it"


def forget():
    """The engine is at work with the file as it is."""
    file = engine.file_of_the_engine()
    kept = file.with_name(file.name + settings.BEFORE)
    if kept.exists():
        kept.unlink()


def wait(asked, what):
    """The engine's journal says why it does not answer."""
    end = time.monotonic() + WAIT_S
    while engine.look(asked)["engine"] != "answers":
        failed = engine.text(engine.run("systemctl", "is-failed", "docker.service").stdout) == "failed"
        if failed or time.monotonic() > end:
            raise engine.Refusal(f"Docker {what}: {journal()}")
        time.sleep(0.5)


def journal():
    """The engine's own last words."""
    words = ("--quiet", "--no-pager", "--output=cat", "--lines=5", "_SYSTEMD_UNIT=docker.service")
    return tail(engine.run("journalctl", *words).stdout)


def tail(output):
    return " | ".join(engine.text(output).splitlines()[-5:])


def main(asked):
    step = {"look": engine.look, "write": settings.write, "install": install, "apply": apply}[sys.argv[1]]
    try:
        answer = step(asked)
    except engine.Refusal as error:
        sys.exit(str(error))
    json.dump(answer, sys.stdout)
