"""What a deployment has done to this host, as one JSON object; changes nothing. Runs on Python 3.9 and later."""
# Its output is what Ansible reads; pathlib would say no more.
# ruff: noqa: PTH110, PTH116, PTH119, PTH120, PTH123, T201

import hashlib
import json
import os
import pwd
import stat
import subprocess
import sys

UNIT = "heterofleet-agent.service"
PROPERTIES = """
ActiveState SubState UnitFileState Type WatchdogUSec Restart RestartUSec KillMode TimeoutStopUSec OOMScoreAdjust
NeedDaemonReload MainPID SystemCallFilter Wants Requires After NRestarts
"""
PATHS = """
/etc /opt /usr/local/bin /etc/systemd/system /etc/heterofleet /etc/heterofleet/agent.key
/etc/heterofleet/agent.yaml /etc/systemd/system/heterofleet-agent.service /opt/heterofleet
/opt/heterofleet/releases /usr/local/bin/heterofleet-agent
"""


def run(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout.strip()


def owner_and_mode(path):
    try:
        info = os.stat(path)
    except OSError as error:
        return os.strerror(error.errno or 0)
    return f"{pwd.getpwuid(info.st_uid).pw_name} {stat.S_IMODE(info.st_mode):o}"


def main():
    shown = run("systemctl", "show", UNIT, "--property", ",".join(PROPERTIES.split()))
    unit = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    pid = unit.get("MainPID", "0")
    program = os.path.realpath("/opt/heterofleet/current/heterofleet-agent")
    found = {
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "unit": unit,
        # One line for each socket that the agent or a child of it listens on.
        "listens": [line for line in run("ss", "-Hltunp").splitlines() if f"pid={pid}," in line],
        "paths": {path: owner_and_mode(path) for path in PATHS.split()},
        "release": os.path.basename(os.path.dirname(program)),
        "command": os.path.realpath("/usr/local/bin/heterofleet-agent"),
        "status": {},
        "sha256": "",
        "containers": run("docker", "ps", "-q", "--no-trunc", "--filter", "label=heterofleet.task").split(),
    }
    if os.path.exists(program):
        with open(program, "rb") as file:
            found["sha256"] = hashlib.sha256(file.read()).hexdigest()
        said = run("heterofleet-agent", "status", "--json")
        found["status"] = json.loads(said) if said.startswith("{") else {"said": said}
    print(json.dumps(found))


main()
