"""Ways out of the volume fence, on the real file system: each is refused for its own reason, nothing is mounted,
nothing is made, and nobody looks into what lies outside."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.tasks.records import Key
from runtime.agent.tasks.volumes import VolumeRejected
from runtime.protocol.tasks import Volume
from tests.integration.fence.yard import Yard

KEY = Key("u-1", 1)


@dataclass(frozen=True)
class Way:
    """How somebody tries to get out, and the words that refuse it. ``host`` and ``setup`` get the yard."""

    name: str
    words: str
    host: Callable[[Yard], str]
    setup: Callable[[Yard], Any] = lambda yard: None
    container: str = "/x"
    create: bool = False


def below(*names: str) -> Callable[[Yard], str]:
    return lambda yard: "/".join((str(yard.data), *names))


def plain(text: str) -> Callable[[Yard], str]:
    return lambda yard: text


def link(name: str, target: str) -> Callable[[Yard], None]:
    """A link below the allowed folder; ``{root}`` stands for the yard."""

    def make(yard: Yard) -> None:
        if not target.isascii():
            (yard.data / target).mkdir()
        (yard.data / name).symlink_to(target.format(root=yard.root))

    return make


def chain(count: int) -> Callable[[Yard], None]:
    def make(yard: Yard) -> None:
        (yard.data / "l0").symlink_to("good")
        for number in range(1, count):
            (yard.data / f"l{number}").symlink_to(f"l{number - 1}")

    return make


def all_of(*steps: Callable[[Yard], Any]) -> Callable[[Yard], None]:
    return lambda yard: [step(yard) for step in steps] and None


def unix_socket(yard: Yard) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(yard.data)  # a socket's address is short
        try:
            server.bind("docker.sock")
        finally:
            os.chdir(here)


def bind(source: str, name: str) -> Callable[[Yard], None]:
    """Root mounts something of the machine below the allowed folder."""

    def make(yard: Yard) -> None:
        there, here = Path(source.format(root=yard.root)), yard.data / name
        here.parent.mkdir(parents=True, exist_ok=True)
        here.mkdir() if there.is_dir() else here.touch()
        yard.mount("--bind", there, here)

    return make


def fresh(kind: str, name: str) -> Callable[[Yard], None]:
    def make(yard: Yard) -> None:
        (yard.data / name).mkdir(parents=True)
        yard.mount("-t", kind, kind, yard.data / name)

    return make


NOT_GIVEN = "outside what this node allows"
LEADS_OUT = r"leads to .*, outside what this node allows"
MISSING = "mount source does not exist"
NEVER = "never allowed: it reaches {place}"
HIDDEN = "never allowed: .* is mounted at or below it"

WAYS = [
    # What the text says.
    Way("dot-dot", NOT_GIVEN, below("..", "out")),
    Way("dot-dot at the end", "never allowed: it reaches .*/data/denied", below("good", "..", "..")),
    Way("dot-dot beyond the root", "never allowed: it reaches /etc", below(*[".."] * 40, "etc")),
    Way("dot-dot among dots and slashes", NOT_GIVEN, below("", ".", "good", "", "..", ".", "..", "out")),
    Way("a name that only begins alike", NOT_GIVEN, lambda yard: f"{yard.data}-secret"),
    Way("another case", NOT_GIVEN, lambda yard: str(yard.data).replace("/data", "/DATA")),
    Way("two slashes before another root", "never allowed: it reaches /etc", plain("//etc//passwd")),
    Way("a trailing blank", MISSING, lambda yard: f"{yard.good} "),
    Way("a trailing dot", MISSING, lambda yard: f"{yard.good}."),
    Way("three dots", MISSING, below("...", "out")),
    Way("a line break", "control character or a line break", lambda yard: f"{yard.good}\n/etc"),
    Way("a carriage return", "control character or a line break", lambda yard: f"{yard.good}\r"),
    Way("a NUL", "control character or a line break", lambda yard: f"{yard.good}\0/../../out"),
    Way("a tabulator", "control character or a line break", lambda yard: f"{yard.good}\t"),
    Way("a line separator of Unicode", "control character or a line break", lambda yard: f"{yard.good}\u2028"),
    Way("a C1 control character", "control character or a line break", lambda yard: f"{yard.good}\x9b"),
    Way("bytes that are not UTF-8", "not UTF-8 text", lambda yard: f"{yard.good}\udcff"),
    Way("half a character of UTF-16", "not UTF-8 text", lambda yard: f"{yard.good}\ud83d"),
    Way("nothing", "is empty", plain("")),
    Way("blanks alone", "is relative", plain("  ")),
    Way("a relative path", "is relative", plain("data/good")),
    Way("a relative path up", "is relative", plain("../etc")),
    Way("a home", "is relative", plain("~/.ssh")),
    Way("a home inside", MISSING, below("~root")),
    Way("a variable", "is relative", plain("$HOME")),
    Way("a variable inside", MISSING, below("${HOME}")),
    Way("a command inside", MISSING, below("$(id)")),
    Way("percent signs for dots", MISSING, below("%2e%2e", "out")),
    Way("overlong dots of Unicode", MISSING, below("\u2025", "out")),
    Way("wide dots of Unicode", MISSING, below("\uff0e\uff0e", "out")),
    Way("a slash of Unicode", MISSING, below("..\u2215out")),
    Way("a wide slash before another root", "is relative", plain("\uff0fetc")),
    Way("a Windows path", "is relative", plain("C:\\data")),
    Way("a URL", "is relative", plain("file:///etc")),
    Way("container and options behind a colon", MISSING, lambda yard: f"{yard.good}:/x:rw,z"),
    Way("options behind a comma", MISSING, lambda yard: f"{yard.good},bind-propagation=shared"),
    Way("a very long path", "longer than 4095 bytes", below(*["a" * 200] * 30)),
    Way("a very long name", "longer than 255 bytes", below("a" * 300)),
    Way("a long name of wide characters", "longer than 255 bytes", below("\u00e4" * 200)),
    # Places that are denied whatever is allowed.
    *(
        Way(f"denied: {host}", NEVER.format(place=place), plain(host))
        for host, place in [
            ("/", "/etc"), ("/etc", "/etc"), ("/etc/../etc/shadow", "/etc"), ("/proc/self/root", "/proc"),
            ("/proc/1/root/etc", "/proc"), ("/proc/self/cwd", "/proc"), ("/sys/fs/cgroup", "/sys"),
            ("/dev/mem", "/dev"),
            ("/boot", "/boot"), ("/root/.ssh", "/root"), ("/run/docker.sock", "/run"),
            ("/var/run/docker.sock", "/var/run"),
            ("/usr/bin", "/usr"), ("/bin", "/bin"), ("/sbin", "/sbin"), ("/lib", "/lib"), ("/lib64", "/lib64"),
            ("/libx32/x", "/libx32"), ("/var", "/var/run"), ("/var/lib", "/var/lib/docker"),
            ("/var/lib/docker/overlay2", "/var/lib/docker"), ("/var/lib/containerd", "/var/lib/containerd"),
            ("/var/lib/heterofleet/agent", "/var/lib/heterofleet"), ("/var/lib/systemd", "/var/lib/systemd"),
            ("/var/spool/cron", "/var/spool"), ("/opt", "/opt/heterofleet"),
            ("/opt/heterofleet/current", "/opt/heterofleet"),
            ("/etc/heterofleet/agent.yaml", "/etc"), ("/run/heterofleet/volumes", "/run"),
        ]
    ),
    Way("a denied folder in an allowed one", "never allowed: it reaches .*/data/denied", below("denied")),
    Way("below a denied folder", "never allowed: it reaches .*/data/denied", below("denied", "marker")),
    Way("around a denied folder", "never allowed: it reaches .*/data/denied", below()),
    # Links.
    Way("an absolute link out", LEADS_OUT, below("l"), link("l", "{root}/out")),
    Way("a relative link out", LEADS_OUT, below("l"), link("l", "../out")),
    Way("below a link out", LEADS_OUT, below("l", "marker"), link("l", "../out")),
    Way("a link to the parent", "never allowed: it reaches .*/data/denied", below("l"), link("l", "..")),
    Way("a link to the root", "never allowed: it reaches /etc", below("l"), link("l", "/")),
    Way("a link to the root, and on from there", "never allowed: it goes through /etc",
        below("l", "etc"), link("l", "/")),
    Way("chained links out", LEADS_OUT, below("a"), all_of(link("a", "b"), link("b", "c"), link("c", "../out"))),
    Way("a link within a link's way", LEADS_OUT,
        below("a"), all_of(link("a", "good/up/../out"), link("good/up", ".."))),
    Way("a link to itself", "too many links", below("l"), link("l", "l")),
    Way("links in a circle", "too many links", below("a"), all_of(link("a", "b"), link("b", "a"))),
    Way("41 links deep", "too many links", below("l40"), chain(41)),
    Way("a dangling link", MISSING, below("l"), link("l", "nowhere")),
    Way("a link through another allowed folder", "never allowed: it goes through .*/data/denied", below("good", "l"),
        link("good/l", "../denied")),
    Way("a link into /etc", "never allowed: it goes through /etc", below("l"), link("l", "/etc/ssl")),
    Way("a link over a denied place and back", "never allowed: it goes through /proc", below("l"),
        link("l", "/proc/self/root{root}/data/good")),
    Way("a link to another process's root", "never allowed: it goes through /proc",
        below("l"), link("l", "/proc/1/root/etc")),
    Way("a link to a working folder", "never allowed: it goes through /proc", below("l"), link("l", "/proc/self/cwd")),
    Way("a link to an open file", "never allowed: it goes through /proc", below("l"), link("l", "/proc/self/fd/0")),
    Way("a link to the engine's socket", "never allowed: it goes through /",
        below("l"), link("l", "/var/run/docker.sock")),
    Way("a link whose name is no text", "not UTF-8 text", below("l"),
        link("l", "\udcff")),
    # What is there is no folder and no plain file.
    Way("a pipe", "is a pipe", below("p"), lambda yard: os.mkfifo(yard.data / "p")),
    Way("a socket", "is a socket", below("docker.sock"), unix_socket),
    Way("a device", "is a device", below("null"), lambda yard: os.mknod(yard.data / "null", 0o20666, os.makedev(1, 3))),
    Way("a folder below a file", "cannot be reached: Not a directory", below("good", "marker", "x")),
    Way("a hard link to a file outside", r"file with 2 names", below("h"),
        lambda yard: os.link(yard.out / "marker", yard.data / "h")),
    # What root has mounted below the allowed folder.
    Way("the root, mounted", "never allowed: it goes through /", below("m"), bind("/", "m")),
    Way("/etc, mounted", "never allowed: it goes through /etc", below("m"), bind("/etc", "m")),
    Way("below /etc, mounted", "never allowed: it goes through /etc", below("m", "ssl"), bind("/etc", "m")),
    Way("a part of /etc, mounted", HIDDEN, below("m"), bind("/etc/ssl", "m")),
    Way("/etc, mounted deeper", HIDDEN, below("deep"), bind("/etc", "deep/er/m")),
    Way("the engine's socket, mounted", "is a socket", below("m"), bind("/run/docker.sock", "m")),
    Way("the engine's socket, mounted deeper", HIDDEN, below("deep"), bind("/run/docker.sock", "deep/m")),
    Way("the denied folder, mounted", "never allowed: it goes through .*/data/denied",
        below("m"), bind("{root}/data/denied", "m")),
    Way("around the denied folder, mounted", HIDDEN, below("deep"), bind("{root}/data", "deep/m")),
    Way("proc, mounted anew", "type proc is mounted at or below it", below("m"), fresh("proc", "m")),
    Way("proc, mounted deeper", "type proc is mounted at or below it", below("deep"), fresh("proc", "deep/m")),
    Way("devices, mounted anew", "type devpts is mounted at or below it", below("deep"), fresh("devpts", "deep/m")),
    # Folders that are made.
    Way("making a folder outside", NOT_GIVEN, below("..", "made"), create=True),
    Way("making a folder behind a link", LEADS_OUT, below("l", "made"), link("l", "../out"), create=True),
    Way("making what a link names", LEADS_OUT, below("l"), link("l", "../out/made"), create=True),
    Way("making a folder in a denied one", "never allowed", below("denied", "made"), create=True),
    Way("making several folders", MISSING, below("made", "deeper"), create=True),
    # Places in the container.
    *(
        Way(f"in the container: {target!r}"[:60], words, below("good"), container=target)
        for target, words in [
            ("/", "it is the root"), ("//", "it is the root"), ("/.", "it is the root"), ("", "it is empty"),
            ("x", "it is relative"), ("./x", "it is relative"), ("/a/../b", "has '..' in it"),
            ("/etc/..", "has '..' in it"),
            ("/proc", "it is in /proc"), ("/proc/1/environ", "it is in /proc"), ("//proc", "it is in /proc"),
            ("/sys/fs/cgroup", "it is in /sys"), ("/dev/nvidia0", "it is in /dev"), ("/dev/./shm", "it is in /dev"),
            ("/x\n", "control character"), ("/x\0", "control character"), ("/" + "a" * 256, "longer than 255"),
            ("/a" * 2100, "longer than 4095"), ("/\udcff", "not UTF-8"),
        ]
    ),
]  # fmt: skip


def test_the_table_is_long_enough() -> None:
    assert len(WAYS) >= 40
    assert len({way.name for way in WAYS}) == len(WAYS)


@pytest.mark.case("FC-030")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name.replace(" ", "-"))
def test_refused(yard: Yard, way: Way) -> None:
    """Fences that compared text let people out: by ``..``, by links, by names that only begin alike."""
    way.setup(yard)
    before = yard.names()
    yard.alarm.rung()
    volume = Volume(way.host(yard), way.container, create=way.create)
    with pytest.raises(VolumeRejected) as refused:
        yard.pins.pin(KEY, [volume], yard.fence)
    text = str(refused.value)
    assert re.search(way.words, text), text
    assert text.isprintable() and len(text) < 9000
    assert yard.alarm.rung() == []
    assert (yard.held(), yard.pins.exists(KEY)) == ([], False)
    assert yard.names() == before


def test_a_good_volume_passes_and_rings_no_alarm(yard: Yard) -> None:
    """The table would hold as well with a fence that refuses all."""
    (yard.data / "link").symlink_to("good")
    volumes = [Volume(str(yard.data / name), f"/{name}") for name in ("good", "link")]
    volumes.append(Volume(str(yard.good / "marker"), "/one/file:with,signs"))
    sources = yard.pins.pin(KEY, volumes, yard.fence)
    assert [source.path for source in sources] == [str(yard.good), str(yard.good), str(yard.good / "marker")]
    assert yard.pins.holds(KEY, [(source.path, source.device, source.inode) for source in sources])
    assert yard.alarm.rung() == []
    assert (yard.out / "marker").read_text()
    assert yard.alarm.rung(), "the alarm itself works"
