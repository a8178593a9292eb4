"""The guard: both builds are equal, byte for byte, in the build folder, at a control plane and on its mirror.

A real server process with its mirror, and the commands as an operator types them.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtime.protocol.manifest import ARCHITECTURES, read_manifest
from tests.integration.contract.live import SERVER, call, clean_environment, control_plane, free_port, run
from tests.integration.distribution.mirrors import fake_builds, flip, wait
from tests.lab.control_plane import ControlPlane


@dataclass
class Places:
    dist: Path
    plane: ControlPlane
    mirror: str

    @property
    def tree(self) -> Path:
        return self.plane.state_dir / "mirror/static/agent"

    def verify(self) -> subprocess.CompletedProcess[str]:
        words = ("--dist", str(self.dist), "--server", self.plane.url, "--mirror", self.mirror, "-o", "json")
        return run(SERVER, "artifacts", "verify", *words)


@contextmanager
def serving(name: str, builds: Path, **settings: str) -> Iterator[Places]:
    port = free_port()
    with control_plane(name, mirror_listen=f"127.0.0.1:{port}", start=False, doorbell_listen="", **settings) as plane:
        plane.prepare()
        shutil.copytree(builds, plane.builds_dir, dirs_exist_ok=True)
        plane.start()
        made = Places(builds, plane, f"http://127.0.0.1:{port}")
        wait(lambda: (made.tree / "manifest.json").exists())
        yield made


@pytest.fixture(scope="module")
def places(builds: Path) -> Iterator[Places]:
    with serving("three-places", builds) as made:
        yield made


def test_md5_and_sha256_are_equal_in_the_three_places_for_both_architectures(places: Places) -> None:
    manifest = read_manifest(places.dist)
    assert set(manifest.builds) == set(ARCHITECTURES)
    for arch, entry in manifest.builds.items():
        content = (places.dist / entry.file).read_bytes()
        wanted = (len(content), hashlib.md5(content).hexdigest(), hashlib.sha256(content).hexdigest())
        assert (entry.size, entry.md5, entry.sha256) == wanted
        for url, path in (
            (places.plane.url, f"/static/agent?arch={arch}"),
            (places.mirror, f"/static/agent/{entry.file}"),
        ):
            answer = call(url, "GET", path)
            assert answer.status == 200
            assert answer.raw == content
            assert (answer.headers["x-checksum-md5"], answer.headers["x-checksum-sha256"]) == wanted[1:]
            assert answer.headers["etag"] == f'"{wanted[2]}"'
    texts = {call(url, "GET", "/static/agent/manifest.json").raw for url in (places.plane.url, places.mirror)}
    assert texts == {(places.dist / "manifest.json").read_bytes()}


def test_verify_says_so_and_finds_a_byte_in_each_of_them(places: Places, tmp_path: Path) -> None:
    assert places.verify().returncode == 0
    name = read_manifest(places.dist).builds["arm64"].file
    dist = tmp_path / "dist"
    shutil.copytree(places.dist, dist)
    for number, (planted, folder) in enumerate(((dist, dist), (None, places.plane.builds_dir), (None, places.tree))):
        before = (folder / name).read_bytes()
        flip(folder / name, 70_000)
        done = Places(planted or places.dist, places.plane, places.mirror).verify()
        (folder / name).chmod(0o644)
        (folder / name).write_bytes(before)
        assert done.returncode == 1
        wrong = [number for number, row in enumerate(json.loads(done.stdout)["files"]) if row["problem"]]
        assert wrong == [2 * number + 1]  # three places with amd64 and arm64 each
    assert places.verify().returncode == 0


def test_one_build_missing_leaves_the_other(tmp_path: Path) -> None:
    with serving("one-build", fake_builds(tmp_path / "builds", "one", ("arm64",))) as places:
        missing = call(places.plane.url, "GET", "/static/agent")
        assert (missing.status, missing.code) == (404, "agent_build_missing")
        assert "heterofleet artifacts build" in missing.body["detail"]
        entry = read_manifest(places.dist).builds["arm64"]
        for url, path in (
            (places.plane.url, "/static/agent?arch=arm64"),
            (places.mirror, f"/static/agent/{entry.file}"),
        ):
            assert hashlib.sha256(call(url, "GET", path).raw).hexdigest() == entry.sha256
        done = places.verify()
        assert done.returncode == 1
        problems = {row["problem"] for row in json.loads(done.stdout)["files"] if row["arch"] == "amd64"}
        assert problems == {"no build for this architecture"}


def test_the_server_says_where_it_listens_and_stops_while_a_download_is_under_way(tmp_path: Path) -> None:
    builds = fake_builds(tmp_path / "builds", "one")
    big = next(builds.glob("heterofleet-agent-amd64-*"))
    with serving("stopping", builds) as places:
        log = places.plane.log.read_text()
        assert f"ready on {places.plane.listen}, mirror on {places.mirror.removeprefix('http://')}" in log
        # A file that fills every buffer on the way, so that it is under way when the server is told to stop.
        large = places.tree / "large"
        large.write_bytes(os.urandom(1 << 20) * 32)
        connection = http.client.HTTPConnection(places.mirror.removeprefix("http://"), timeout=60)
        connection.request("GET", "/static/agent/large")
        answer = connection.getresponse()
        first = answer.read(1000)
        assert places.plane.pid is not None
        os.kill(places.plane.pid, signal.SIGTERM)
        wait(lambda: "answering what is in flight" in places.plane.log.read_text())
        assert hashlib.sha256(first + answer.read()).hexdigest() == hashlib.sha256(large.read_bytes()).hexdigest()
        connection.close()
        wait(lambda: places.plane.pid is None)
        assert "Traceback" not in places.plane.log.read_text()
        with pytest.raises(OSError):
            call(places.mirror, "GET", f"/static/agent/{big.name}")


def test_a_mirror_port_in_use_is_69_and_names_the_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [SERVER, "server", "run", "--listen", f"127.0.0.1:{free_port()}", "--doorbell-listen", ""]
            + ["--mirror-listen", f"127.0.0.1:{port}", "--state-dir", str(tmp_path), "--mode", "dev"],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 69
    assert f"127.0.0.1:{port} cannot be listened on" in done.stderr
    assert "mirror_listen" in done.stderr
