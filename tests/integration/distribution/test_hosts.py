"""Hosts that are not as most are: refused in clear words with nothing left behind, or installed all the same.

Most of them are the lab's node as one mount namespace sees it, so the node itself stays what it is.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.integration.distribution.site import KEY, SCRIPT, Site, changed, snapshot
from tests.lab import Lab, node_image

READ_ONLY = "mount --bind {0} {0}; mount -o remount,ro,bind {0}"


def on_host(site: Site, setup: str, *words: str, start: str = f"exec sh {SCRIPT}") -> subprocess.CompletedProcess[str]:
    """The install script where ``setup`` has changed what it sees of the node; ``start`` is how it is called."""
    script = f'mount --make-rprivate /\n{setup}\n{start} --key-file {KEY} "$@"'
    return site.node.run(["unshare", "-m", "sh", "-euc", script, "sh", *words], check=False, timeout=150)


def stub(path: str, text: str) -> str:
    """Put another program in the place of one, for the namespace only."""
    text = f"printf '%s\\n' '#!/bin/sh' '{text}' >/mnt/stub; chmod 755 /mnt/stub"
    return f"mount -t tmpfs none /mnt; {text}; mount --bind /mnt/stub {path}"


# Situation -> (setup, exit code, words). None of them gets as far as a change.
REFUSED = {
    "no systemd, with its tools": ("mount -t tmpfs none /run/systemd", 5, "no /run/systemd/system"),
    "no Python": ("mount -t tmpfs none /usr/bin/../lib/python3.11; mount --bind /bin/false /usr/bin/python3.11", 5,
                  "wanted Python 3.9 to 3.14"),
    "only Python 3.8": (stub("/usr/bin/python3.11", 'case $1 in -V) echo Python 3.8.10;; *) exit 1;; esac'), 5,
                        "found Python 3.8.10; install one, for example python3.11"),
    "a Python that crashes": (stub("/usr/bin/python3.11", "kill -SEGV $$"), 5, "python3, which does not run"),
    "another machine": (stub("/usr/bin/uname", "echo riscv64"), 5,
                        "no build for the architecture riscv64; wanted x86_64 or aarch64"),
    "a file for /opt/heterofleet": ("mount -t tmpfs none /opt; echo mine >/opt/heterofleet", 8,
                                    "/opt/heterofleet is no folder"),
    "a link for /opt/heterofleet": ("mount -t tmpfs none /opt; mkdir /opt/a; ln -s a /opt/heterofleet", 8,
                                    "/opt/heterofleet is a symbolic link"),
}  # fmt: skip


@pytest.mark.case("FC-060")
def test_a_host_that_cannot_run_an_agent_is_refused_before_anything_is_touched(site: Site) -> None:
    """systemctl was there and no systemd behind it; other hosts failed half-way in other ways."""
    before = snapshot(site.node, times=True)
    for name, (setup, code, words) in REFUSED.items():
        done = on_host(site, setup)
        assert (done.returncode, words in done.stderr, name) == (code, True, name), done.stderr
        assert len(done.stderr.splitlines()) == 1, (name, done.stderr)
    by_others = f"exec setpriv --reuid=1000 --regid=1000 --clear-groups sh -s -- <{SCRIPT}"
    done = on_host(site, "", start=by_others)
    assert (done.returncode, done.stderr) == (2, "heterofleet: this must run as root: put sudo before sh\n")
    assert changed(before, snapshot(site.node, times=True)) == []


@pytest.mark.case("FC-060")
@pytest.mark.parametrize("image", ["Debian", "busybox"])
def test_in_a_plain_container_nothing_is_installed(lab: Lab, site: Site, image: str) -> None:
    """No /run/systemd/system: neither with systemctl and all else at hand, nor where there is nothing of it."""
    name = f"hf-plain-{site.node.index}-{image.lower()}"
    which = node_image.tag() if image == "Debian" else lab.task_image
    made = ["docker", "run", "-i", "--name", name, "--entrypoint", "/bin/sh", which, "-s"]
    try:
        script = site.node.get(SCRIPT)
        done = subprocess.run([*made, "--", "--yes"], input=script, capture_output=True, timeout=60)
        assert done.returncode == 5, done.stderr
        assert b"this host was not started by systemd" in done.stderr
        left = subprocess.run(["docker", "diff", name], capture_output=True, check=True, text=True).stdout
        assert left == ""
    finally:
        subprocess.run(["docker", "rm", "-f", name], capture_output=True, check=True)


# Situation -> (setup, words, where files may be left). All of them fail after the first change, and take it back.
TAKEN_BACK = {
    "read-only /opt": (READ_ONLY.format("/opt"), "cannot write /opt/heterofleet; it lies on a file system that is"),
    "read-only /etc": (READ_ONLY.format("/etc"), "cannot make the folder /etc/heterofleet; it lies on a file system"),
    "a full /opt": ("mount -t tmpfs -o size=12m none /opt", "has 11 MiB free, wanted"),
    "no inodes in /opt": ("mount -t tmpfs -o nr_inodes=6 none /opt", "No space left on device"),
    "no inodes for the unit": ("mount -t tmpfs -o nr_inodes=1 none /etc/systemd/system", "cannot write /etc/systemd"),
    "noexec /opt": ("mount -t tmpfs -o noexec none /opt", "/opt/heterofleet is mounted noexec"),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN_BACK)
def test_a_host_that_takes_no_files_gets_its_state_back(site: Site, name: str) -> None:
    setup, words = TAKEN_BACK[name]
    before = snapshot(site.node)
    look = f"sh {SCRIPT}"
    after = '|| code=$?; find /opt /etc/heterofleet 2>/dev/null || :; exit "$code"'
    script = f"mount --make-rprivate /\n{setup}\ncode=0\n{look} --key-file {KEY} {after}"
    done = site.node.run(["unshare", "-m", "sh", "-euc", script], check=False, timeout=150)
    assert done.returncode == 8, done.stderr
    assert words in done.stderr
    found = [line for line in done.stdout.splitlines() if line.startswith("/")]
    assert found == ["/opt"], done.stdout
    assert changed(before, snapshot(site.node)) == []


@pytest.mark.case("FC-057")
@pytest.mark.parametrize("path", ["/sbin:/bin:/usr/sbin:/usr/bin", ""], ids=["as sudo sets it", "empty"])
def test_a_short_path_makes_no_difference(site: Site, path: str) -> None:
    """The installer called its own program by name, and sudo's PATH does not have /usr/local/bin."""
    done = on_host(site, "", start=f"exec env -i PATH={path} /bin/sh {SCRIPT}")
    assert done.returncode == 0, done.stderr
    assert "is registered" in done.stdout
    text = site.node.get("/etc/heterofleet/agent.yaml")
    # The same through a real sudo, with its own PATH and somebody else's HOME.
    site.node.sh(f"install -m 644 {SCRIPT} /tmp/install-agent.sh")
    again = site.node.ssh(["sudo", "sh", "/tmp/install-agent.sh", "--yes"], user="ops", check=False)
    assert (again.returncode, "is there already" in again.stdout) == (0, True), again.stderr
    assert site.node.get("/etc/heterofleet/agent.yaml") == text
    assert site.node.run(["find", "/home/ops", "-newer", SCRIPT]).stdout == ""
    site.node.run(["rm", "/tmp/install-agent.sh"])


@pytest.mark.case("FC-059")
def test_nothing_is_executed_from_a_temporary_folder(site: Site) -> None:
    """Hardened machines forbid programs in /tmp; /usr/local may be read-only there, too, and curl missing."""
    site.node.run(["mount", "-o", "remount,noexec", "/tmp"])
    try:
        assert site.node.sh("cp /bin/true /tmp/true; /tmp/true && echo runs || echo no; rm /tmp/true") == "no"
        setup = "mount -t tmpfs -o noexec none /var/tmp\nmount --bind /dev/null /usr/bin/curl\n" + READ_ONLY.format(
            "/usr/local"
        )
        done = on_host(site, setup, start=f"exec env TMPDIR=/nonexistent sh {SCRIPT}")
        assert done.returncode == 0, done.stderr
        assert "warning: cannot make the link /usr/local/bin/heterofleet-agent" in done.stderr
        assert site.property("ActiveState") == "active"
        # Again in the other direction: what could not be done then is done now.
        again = site.install(env={"TMPDIR": "/tmp"})
        assert again.returncode == 0, again.stderr
        assert site.status()["registered"]
        assert site.node.sh("find /tmp /var/tmp -newer /root/install-agent.sh -type f") == ""
    finally:
        site.node.run(["mount", "-o", "remount,exec", "/tmp"])


@pytest.mark.case("FC-058")
@pytest.mark.parametrize("tools", [True, False], ids=["restorecon", "no tools"])
def test_with_selinux_files_are_made_where_they_belong(site: Site, tools: bool) -> None:
    """A file that is moved out of /tmp keeps its label there; systemd could not execute the program."""
    says = {"getenforce": "echo Enforcing"}
    if tools:
        says["restorecon"] = 'echo "$@" >>/root/selinux/called'
    for name, text in says.items():
        site.node.put(f"/root/selinux/{name}", f"#!/bin/sh\n{text}\n", 0o755)
    trace = "strace -f -qq -e trace=rename,renameat,renameat2,link,linkat -e signal=none -o /root/selinux/renames"
    try:
        done = on_host(site, "", start=f"PATH=/root/selinux:$PATH exec {trace} sh {SCRIPT}")
        assert done.returncode == 0, done.stderr
        # Started by systemd, not by us.
        assert "is registered" in done.stdout and site.property("ActiveState") == "active"
        if tools:
            called = site.node.get("/root/selinux/called").decode()
            for path in ("/opt/heterofleet/releases/", "/etc/heterofleet", "/etc/systemd/system/heterofleet-agent"):
                assert path in called
        else:
            assert "SELinux is enforcing and restorecon is missing" in done.stderr
        # Whatever got its name by a rename was in the same folder before, or never outside our own.
        for line in site.node.get("/root/selinux/renames").decode().splitlines():
            names = line.split(chr(34))[1::2]
            if len(names) == 2 and "/etc/" in names[1]:
                assert names[0].rpartition("/")[0] == names[1].rpartition("/")[0], line
            assert not [name for name in names if name.startswith(("/tmp", "/var/tmp"))], line
    finally:
        site.node.run(["rm", "-rf", "/root/selinux"])


@pytest.fixture
def older_copies(site: Site) -> Iterator[list[str]]:
    paths = ["/usr/bin/heterofleet-agent", "/usr/local/sbin/heterofleet-agent"]
    for path in paths:
        site.node.put(path, "#!/bin/sh\necho older; exit 0\n", 0o755)
    yield paths
    site.node.run(["rm", "-f", *paths])


@pytest.mark.case("FC-062")
def test_older_copies_on_path_are_named_and_never_asked(site: Site, older_copies: list[str]) -> None:
    """The check looked the program up on PATH, found an older one, and reported that one's version."""
    done = on_host(site, "", start=f"exec env PATH=/usr/bin:/usr/local/sbin:$PATH sh {SCRIPT}")
    assert done.returncode == 0, done.stderr
    for path in older_copies:
        said = f"there is another copy, {path}; the service runs /opt/heterofleet/current/heterofleet-agent"
        assert done.stderr.count(said) == 1
    running = site.node.sh(f"tr '\\0' ' ' </proc/{site.property('MainPID')}/cmdline")
    assert "/opt/heterofleet/" in running
    assert site.node.run(["/usr/local/bin/heterofleet-agent", "status"], check=False).returncode == 0
    for path in older_copies:
        assert site.node.run([path]).stdout == "older\n"


@pytest.mark.case("FC-064")
def test_other_languages_and_masks_leave_the_same_files(site: Site) -> None:
    """Words and numbers in another language were taken for other values; an open umask left open files."""
    assert site.install("--key-file", KEY, "--label", "stadt=Köln", "--no-start").returncode == 0
    plain = of_ours(snapshot(site.node))
    site.uninstall("--purge")
    translated = stub("/usr/bin/free", "echo gesamt benutzt frei; echo Speicher: 1,5 2,5 3,5")
    setup = f"umask 0\n{translated}"
    languages = "LC_ALL=de_DE.UTF-8 LANG=fr_FR.UTF-8 LANGUAGE=es LC_NUMERIC=de_DE.UTF-8 TZ=Asia/Tokyo"
    site.node.run(["systemctl", "set-environment", "LC_ALL=de_DE.UTF-8", "LANG=fr_FR.UTF-8"])
    try:
        done = on_host(site, setup, "--label", "stadt=Köln", "--no-start", start=f"exec env {languages} sh {SCRIPT}")
        assert done.returncode == 0, done.stderr
        assert changed(plain, of_ours(snapshot(site.node))) == []
        done = on_host(site, "umask 077", start=f"exec env {languages} bash {SCRIPT}")
        assert done.returncode == 0, done.stderr
        assert changed(plain, of_ours(snapshot(site.node))) == []
        seen = site.plane.get(f"/api/v1/nodes/{site.status()['node_id']}")
        assert seen["labels"] == {"stadt": "Köln"}
        total = int(site.node.sh("awk '/^MemTotal/ {print $2}' /proc/meminfo")) // 1024
        assert seen["host"]["memory_total_mib"] == pytest.approx(total, abs=1)
    finally:
        site.node.run(["systemctl", "unset-environment", "LC_ALL", "LANG"])


def of_ours(lines: list[str]) -> list[str]:
    """What an installation makes, but for what the agent itself writes while it runs."""
    ours = [line for line in lines if "heterofleet" in line.split(" ")[0]]
    return [line for line in ours if "/cache/" not in line and not line.startswith("/var/lib/heterofleet")]


@pytest.mark.case("FC-014")
def test_a_host_name_that_is_no_ascii_installs_and_registers(site: Site) -> None:
    """A name with accents or Chinese characters went into an HTTP header, and the program ended."""
    name = "节点-é-1"
    before = site.node.sh("cat /proc/sys/kernel/hostname")
    set_name = "import socket, sys; socket.sethostname(sys.argv[1])"
    site.node.run(["python3", "-c", set_name, name])
    try:
        done = site.install("--key-file", KEY)
        assert done.returncode == 0, done.stderr
        node_id = site.status()["node_id"]
        assert node_id.isascii() and f"node {node_id} is registered" in done.stdout
        assert site.plane.get(f"/api/v1/nodes/{node_id}")["hostname"] == name
    finally:
        site.node.run(["python3", "-c", set_name, before])
