"""What a task tries that was given nothing: runs on the node as the task itself, and prints a line for each try.

``python3 - AGENT_PID``; ``refused NAME WHY`` or ``GOT NAME WHAT``. Nothing here needs more than the standard library.
"""

import ctypes
import os
import pathlib
import socket
import subprocess
import sys

AGENT = sys.argv[1]
SOCKETS = ("/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket",
           "/run/systemd/private")  # fmt: skip
FILES = ("/etc/heterofleet/agent.yaml", "/etc/heterofleet/api-key", "/var/lib/heterofleet/agent/journal.db",
         "/var/lib/heterofleet/agent/status.json", "/run/heterofleet/processes/.pump", "/etc/shadow")  # fmt: skip
PROC = ("environ", "mem", "maps", "root/etc/heterofleet/agent.yaml", "cwd/etc/shadow", "fd/0")


def attempt(name, action, *words):
    try:
        what = action(*words)
    except OSError as error:
        print("refused", name, " ".join(str(error.strerror or error).split()))
    else:
        print("GOT", name, repr(what)[:200])


def read(path):
    with pathlib.Path(path).open("rb") as file:
        return file.read(64)


def connect(path):
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)
        peer.sendall(b"GET /version HTTP/1.0\r\n\r\n")
        return peer.recv(64)


def write(path):
    with pathlib.Path(path).open("ab") as file:
        return file.name


def run(*words):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    if done.returncode != 0:
        raise OSError(done.stderr.decode(errors="replace").strip()[-120:] or f"exit code {done.returncode}")
    return done.stdout


def trace():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, int(AGENT), None, None) != 0:  # PTRACE_ATTACH
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "attached"


def listed(path):
    return [entry.name for entry in pathlib.Path(path).iterdir()]


def own_setuid_copy():
    run("/bin/cp", "/bin/sh", "/tmp/sh")
    pathlib.Path("/tmp/sh").chmod(0o4755)


for path in FILES:
    attempt(f"read {path}", read, path)
for path in ("/etc/heterofleet", "/var/lib/heterofleet", "/run/heterofleet", "/var/lib/docker"):
    attempt(f"list {path}", listed, path)
for path in SOCKETS:
    attempt(f"connect {path}", connect, path)
    attempt(f"connect through /proc/1/root {path}", connect, f"/proc/1/root{path}")
for pid in (AGENT, "1"):
    for name in PROC:
        attempt(f"read /proc/{'AGENT' if pid == AGENT else pid}/{name}", read, f"/proc/{pid}/{name}")
attempt("ptrace", trace)
attempt("kill", os.kill, int(AGENT), 18)
for path in ("/opt/heterofleet/planted", "/etc/planted", "/usr/bin/planted", "/var/lib/planted", "/run/planted"):
    attempt(f"write {path}", write, path)
attempt("hard link", os.link, "/etc/shadow", "/tmp/shadow")
attempt("hard link of the agent's", os.link, "/etc/heterofleet/agent.yaml", "/tmp/agent")
attempt("become root", os.setuid, 0)
attempt("setuid program", run, "/usr/bin/su", "-c", "id")
attempt("sudo", run, "/usr/bin/sudo", "-n", "id")
attempt("own setuid copy", own_setuid_copy)
attempt("new namespaces", run, "/usr/bin/unshare", "-Urm", "/bin/umount", "/etc/heterofleet")
attempt("mount", run, "/bin/mount", "-t", "tmpfs", "none", "/tmp")
attempt("raw disk", os.mknod, "/tmp/disk", 0o60600, os.makedev(8, 0))
attempt("systemd-run", run, "/usr/bin/systemd-run", "--wait", "/bin/true")
attempt("systemctl", run, "/usr/bin/systemctl", "stop", "heterofleet-agent.service")
attempt("docker", run, "/usr/bin/docker", "ps")
