"""Scripts of which only a part arrives: nothing happens, and the exit code says so."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtime.artifacts.scripts import SCRIPTS, script
from tests.integration.distribution.front import Answer, front
from tests.integration.distribution.site import KEY, SCRIPT, Site, changed, snapshot

SHELLS = (("dash",), ("bash",), ("bash", "--posix"), ("busybox", "sh"))
FOLDERS = ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every command of this machine, each of which only writes down that it was called."""
    folder = tmp_path_factory.mktemp("commands")
    stub = folder / "stub"
    stub.write_text(f'#!{shutil.which("dash")}\necho "$0 $*" >>{folder}/called\n')
    stub.chmod(0o755)
    for name in {entry.name for place in FOLDERS for entry in Path(place).glob("*")}:
        if not (folder / name).exists():
            (folder / name).symlink_to("stub")
    return folder


@pytest.fixture(params=SCRIPTS)
def text(request: pytest.FixtureRequest) -> bytes:
    """A script's bytes without the newline at the end, which it does not need."""
    return script(request.param, "http://198.18.0.1:3333").encode().rstrip(b"\n")


@pytest.mark.case("FC-055")
def test_cut_off_at_any_byte_it_does_nothing_and_says_so(text: bytes, recorder: Path, tmp_path: Path) -> None:
    """sh runs what has arrived: a cut connection left half an install."""
    # Every byte of the script that is documented for a pipe, and of what another has beyond it the lines' ends.
    whole = b"usage: sh install-agent.sh" in text
    lengths = range(1, len(text)) if whole else line_ends(text)
    codes: dict[int, int] = {}
    with ThreadPoolExecutor(2) as pool:
        for part in pool.map(lambda n: codes_when_cut(text, lengths[n::2], tmp_path / str(n), recorder), range(2)):
            codes.update(part)
    # Only the first line can end well: it is a comment, and nothing follows.
    comment = text.index(b"\n") + 1
    assert {code for length, code in codes.items() if length <= comment} <= {0}
    assert {length: code for length, code in codes.items() if length > comment and code != 2} == {}
    assert len(codes) == len(lengths)
    assert not (recorder / "called").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def line_ends(text: bytes) -> list[int]:
    """Before, at and after the end of each line, and the last bytes one by one."""
    ends = [at for at, byte in enumerate(text) if byte == 10]
    around = {at + more for at in ends for more in (0, 1, 2)} | set(range(len(text) - 40, len(text)))
    return sorted(at for at in around if 0 < at < len(text))


def codes_when_cut(text: bytes, lengths: range | list[int], file: Path, commands: Path) -> dict[int, int]:
    """Length -> exit code of dash, which reads only that many bytes from its standard input."""
    shell = str(shutil.which("dash"))
    null = os.open(os.devnull, os.O_RDWR)
    handle = os.open(file, os.O_RDWR | os.O_CREAT)
    actions = [(os.POSIX_SPAWN_DUP2, handle, 0), (os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
    os.pwrite(handle, text, 0)
    codes = {}
    for length in reversed(lengths):
        os.truncate(handle, length)
        os.lseek(handle, 0, os.SEEK_SET)
        child = os.posix_spawn(shell, ["sh"], {"PATH": str(commands)}, file_actions=actions)
        codes[length] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(handle)
    os.close(null)
    return codes


@pytest.mark.case("FC-055")
@pytest.mark.parametrize("shell", SHELLS[1:], ids=" ".join)
def test_cut_off_in_other_shells(text: bytes, shell: tuple[str, ...], recorder: Path) -> None:
    program = str(shutil.which(shell[0]))
    for length in [*range(100, len(text), 1201), *range(len(text) - 12, len(text))]:
        done = subprocess.run(
            [program, *shell[1:]], input=text[:length], capture_output=True, env={"PATH": str(recorder)}
        )
        assert (done.returncode, done.stdout) == (2, b""), length
    assert not (recorder / "called").exists()


@pytest.mark.case("FC-055")
def test_the_whole_script_does_call_commands(text: bytes, recorder: Path) -> None:
    """The recorder records: what is not cut runs into the first command that fails."""
    dash = str(shutil.which("dash"))
    done = subprocess.run([dash], input=text, capture_output=True, env={"PATH": str(recorder)})
    assert done.returncode != 0
    called = (recorder / "called").read_text()
    (recorder / "called").unlink()
    assert f"{recorder}/id -u" in called


@pytest.mark.case("FC-055")
def test_cut_at_40_places_on_a_node_it_leaves_everything_as_it_was(site: Site) -> None:
    """As a file, from a pipe, and from a download that breaks off, with all that an installation needs at hand."""
    size = len(site.node.get(SCRIPT).rstrip(b"\n"))
    # The pipe's limit, buffers of shells, and places spread over the rest; the last bytes most of all.
    lengths = sorted({11, 12, 4095, 4096, 8192, *(size - n for n in (1, 2, 3, 5, 8, 13, 21))})
    lengths = sorted({*lengths, *(100 + n * (size - 200) // (39 - len(lengths)) for n in range(40 - len(lengths)))})
    assert len(lengths) == 40
    before = snapshot(site.node, times=True)
    told = site.node.sh(
        f"cd /tmp; for n in {' '.join(map(str, lengths))}; do\n"
        f"head -c $n {SCRIPT} >cut.sh; set +e; sh cut.sh --key-file {KEY} >said 2>&1 </dev/null; as_file=$?\n"
        f"head -c $n {SCRIPT} | sh -s -- --key-file {KEY} >>said 2>&1; as_pipe=$?; set -e\n"
        "echo $n $as_file $as_pipe; done; rm cut.sh said",
        timeout=120,
    )
    assert told.splitlines() == [f"{n} 2 2" for n in lengths]
    # The writer is killed; curl is told of more bytes than come, and of a server that is gone.
    half = site.node.get(SCRIPT)[: size // 2]
    with front(site.plane.url) as door:
        door.answers["/install-agent.sh"] = Answer(200, half, length=size)
        for writer in (f"sh -c 'head -c {size // 2} {SCRIPT}; kill -9 $$'", f"curl -fsSL {door.url}/install-agent.sh"):
            done = site.node.run(["sh", "-c", f"{writer} | sh -s -- --key-file {KEY}"], check=False)
            assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert changed(before, snapshot(site.node, times=True)) == []


# Commands that need nothing on their standard input: each says what it found there before it does its work.
_GREEDY = """#!/bin/sh
found=$(cat | wc -c)
[ "$found" = 0 ] || echo "${0##*/} found $found" >>/root/greedy/found
exec /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "${0##*/}" "$@"
"""


@pytest.mark.case("FC-055")
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_child_that_reads_its_input_does_not_eat_the_script(site: Site, shell: str) -> None:
    """A program that was started by a piped script read the rest of the script, which then ended early."""
    names = "id uname stat readlink mkdir ln systemctl docker flock env mktemp date restorecon getenforce find"
    site.node.put("/root/greedy/greedy", _GREEDY, 0o755)
    site.node.sh(f"cd /root/greedy; for n in {names}; do ln -s greedy $n; done")
    try:
        # The whole script, and behind it more than any shell reads ahead.
        piped = (
            f"{{ curl -fsSL {site.plane.url}/install-agent.sh; head -c 200000 /dev/zero | tr '\\0' '#'; }} | "
            f"HETEROFLEET_API_KEY=$(cat {KEY}) PATH=/root/greedy:$PATH {shell} -s -- --no-start"
        )
        done = site.node.run(["sh", "-c", piped], check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "not started" in done.stdout
        assert site.node.run(["cat", "/root/greedy/found"], check=False).stdout == ""
    finally:
        site.node.run(["rm", "-rf", "/root/greedy"])
