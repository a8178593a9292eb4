"""``artifacts verify`` over the three places: what each way of being wrong looks like, and that it always ends."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from runtime.artifacts.command import artifacts
from runtime.artifacts.errors import VerifyError
from runtime.artifacts.places import Folder, Place, Web
from runtime.artifacts.publish import ALL_IN_ONE, publish
from runtime.artifacts.scripts import script
from runtime.artifacts.verify import addresses, verify
from runtime.protocol.manifest import ARCHITECTURES, read_manifest
from tests.integration.contract.live import SERVER, run
from tests.integration.distribution import conftest, mirrors
from tests.integration.distribution.front import Answer, Front, front
from tests.integration.distribution.mirrors import fake_builds, flip, until_published


@dataclass
class Three:
    """The three places: what was built, a control plane, a mirror; good until a test plants something."""

    dist: Path
    server: conftest.Served
    mirror: mirrors.Served

    @property
    def places(self) -> list[Place]:
        return [Folder(self.dist), Web(self.server.url), Web(self.mirror.url, by_name=True)]

    def wrong(self) -> dict[tuple[str, str | None], str]:
        """(place, architecture) -> problem."""
        names = {self.places[0].name: "dist", self.places[1].name: "server", self.places[2].name: "mirror"}
        return {(names.get(row.place, "script"), row.arch): row.problem for row in verify(self.places) if row.problem}

    def file(self, where: str, arch: str) -> Path:
        folder = {"dist": self.dist, "server": self.server.folder, "mirror": self.mirror.tree / "static/agent"}[where]
        return folder / read_manifest(self.dist).builds[arch].file


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small ones in place of the real ones: everything here is about their handing out."""
    return fake_builds(tmp_path_factory.mktemp("builds"), "good")


@pytest.fixture(scope="module")
def _mirror(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[mirrors.Served]:
    with mirrors.mirror(tmp_path_factory.mktemp("state"), builds) as made:
        until_published(made)
        yield made


@pytest.fixture
def three(served: conftest.Served, _mirror: mirrors.Served, builds: Path, tmp_path: Path) -> Three:
    dist = tmp_path / "dist"
    shutil.copytree(builds, dist)
    publish(builds, _mirror.tree, progress=print)  # what the test before planted is gone
    return Three(dist, served, _mirror)


def test_good_places_are_good(three: Three) -> None:
    rows = verify(three.places)
    assert [row.problem for row in rows] == [None] * 7
    assert [row.arch for row in rows] == [*ARCHITECTURES, *ARCHITECTURES, *ARCHITECTURES, None]
    manifest = read_manifest(three.dist)
    for row in rows[:6]:
        entry = manifest.builds[str(row.arch)]
        assert (row.size, row.md5, row.sha256) == (entry.size, entry.md5, entry.sha256)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("where", ["dist", "server", "mirror"])
@pytest.mark.parametrize("position", [0, 5000, -1])
def test_a_planted_byte_is_found(three: Three, where: str, arch: str, position: int) -> None:
    flip(three.file(where, arch), position)
    wrong = three.wrong()
    assert set(wrong) == {(where, arch)}
    assert "not what" in wrong[where, arch]


def test_a_planted_byte_in_the_script_is_found(three: Three) -> None:
    flip(three.mirror.tree / ALL_IN_ONE, 2000)
    assert three.wrong() == {("script", None): "the script is not what this release's template gives"}


def test_a_script_that_leads_elsewhere_is_found(three: Three) -> None:
    path = three.mirror.tree / ALL_IN_ONE
    for server, mirror, words in (
        ("http://evil.example", "", "the script uses the control plane http://evil.example, and"),
        (three.server.url, "http://evil.example", "the script uses the mirror http://evil.example, and"),
    ):
        path.chmod(0o644)
        path.write_text(script(ALL_IN_ONE, server, mirror))
        assert three.wrong()["script", None].startswith(words)
    path.write_text(script(ALL_IN_ONE, three.server.url, three.mirror.url))
    assert three.wrong() == {}


@pytest.mark.parametrize("where", ["server", "mirror"])
def test_a_missing_build_is_found_and_the_other_is_still_looked_at(three: Three, where: str) -> None:
    folder = three.file(where, "arm64").parent
    document = json.loads((folder / "manifest.json").read_text())
    del document["builds"]["arm64"]
    (folder / "manifest.json").chmod(0o644)
    (folder / "manifest.json").write_text(json.dumps(document))
    assert three.wrong() == {(where, "arm64"): "no build for this architecture"}


@pytest.mark.parametrize("where", ["server", "mirror"])
def test_a_missing_file_is_found(three: Three, where: str) -> None:
    three.file(where, "arm64").unlink()
    wrong = three.wrong()
    assert set(wrong) == {(where, "arm64")}
    assert "HTTP status 404" in wrong[where, "arm64"]


@pytest.mark.parametrize(
    ("member", "value", "words"),
    [
        ("version", "9.9.9", "the manifest says version '9.9.9', wanted"),
        ("commit", "ffffffffffff", "the manifest says commit"),
        ("dirty", True, "the manifest says dirty True"),
        ("built_at", "2020-01-01T00:00:00Z", "the manifest says built_at"),
        ("protocol", 7, "the manifest says protocol 7"),
    ],
)
def test_a_manifest_that_lies_is_found(three: Three, member: str, value: object, words: str) -> None:
    listing = three.server.folder / "manifest.json"
    document = json.loads(listing.read_text())
    listing.write_text(json.dumps({**document, member: value}))
    wrong = three.wrong()
    assert set(wrong) == {("server", arch) for arch in ARCHITECTURES}
    assert all(words in problem for problem in wrong.values())


@pytest.mark.parametrize("member", ["version", "commit", "dirty", "built_at"])
def test_the_first_manifest_is_held_against_the_builds_themselves(three: Three, member: str) -> None:
    listing = three.dist / "manifest.json"
    document = json.loads(listing.read_text())
    lie = True if member == "dirty" else "9.9.9"
    listing.write_text(json.dumps({**document, member: lie}))
    wrong = {row.arch: row.problem for row in verify([Folder(three.dist)])}
    assert set(wrong) == set(ARCHITECTURES)
    assert all(f"the manifest says {member}" in str(problem) for problem in wrong.values())


@pytest.mark.parametrize(("name", "length"), [("md5", 32), ("sha256", 64), ("size", 0)])
def test_a_checksum_that_lies_is_found(three: Three, name: str, length: int) -> None:
    listing = three.mirror.tree / "static/agent/manifest.json"
    document = json.loads(listing.read_text())
    document["builds"]["amd64"][name] = "0" * length if length else 17
    listing.chmod(0o644)
    listing.write_text(json.dumps(document))
    assert set(three.wrong()) == {("mirror", "amd64")}


def test_another_architectures_file_is_found(three: Three) -> None:
    listing = three.mirror.tree / "static/agent/manifest.json"
    document = json.loads(listing.read_text())
    document["builds"]["amd64"] = document["builds"]["arm64"]
    listing.chmod(0o644)
    listing.write_text(json.dumps(document))
    assert three.wrong()["mirror", "amd64"].startswith("another build")


@contextmanager
def door(three: Three, where: str = "mirror") -> Iterator[tuple[Front, list[Place]]]:
    """A door before one of the places, and the places with the door in its stead."""
    upstream = three.mirror.url if where == "mirror" else three.server.url
    with front(upstream, host="127.0.0.1", offset=8) as made:
        yield made, [Folder(three.dist), Web(made.url, by_name=where == "mirror")]


PAGE = b"<!doctype html><html><body>Please sign in</body></html>"


@pytest.mark.case("FC-056")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(404, PAGE, {"Content-Type": "text/html"}), "HTTP status 404"),
        (Answer(302, b"", {"Location": "http://login.example/?next=x"}), "a redirect to http://login.example/"),
        (Answer(301, b"", {"Location": "/elsewhere"}), "a redirect to /elsewhere"),
        (Answer(200, PAGE, {"Content-Type": "text/html"}), "a page (text/html) in place of the file"),
        (Answer(200, PAGE), "cut off: 55 of"),
        (Answer(200, b""), "cut off: 0 of"),
        (Answer(200, b"\x7fELF" * 10, length=5_000_000), "was cut off"),
        (Answer(503, PAGE, {"Content-Type": "text/html"}), "HTTP status 503"),
    ],
    ids=["404", "302", "301", "page", "page without a type", "empty", "cut", "503"],
)
def test_an_error_page_is_never_taken_for_the_file(three: Three, answer: Answer, words: str) -> None:
    """Servers answer 404, 302, 200 with a page, with nothing, or cut short: curl stored a web page as a program."""
    with door(three) as (made, places):
        path = f"/static/agent/{read_manifest(three.dist).builds['arm64'].file}"
        made.answers[path] = answer
        wrong = {(row.place, row.arch): row.problem for row in verify(places) if row.problem}
    assert set(wrong) == {(places[1].name, "arm64")}
    assert words in str(wrong[places[1].name, "arm64"])


@pytest.mark.case("FC-056")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(200, PAGE, {"Content-Type": "text/html"}), "no manifest, but a web page"),
        (Answer(302, b"", {"Location": "http://login.example/"}), "a redirect to http://login.example/"),
        (Answer(200, b"x" * 2_000_000), "so it is no manifest"),
        (Answer(200, b'{"version":', length=600), "was cut off"),
    ],
    ids=["page", "302", "endless", "cut"],
)
def test_an_error_page_is_never_taken_for_the_manifest(three: Three, answer: Answer, words: str) -> None:
    """As above, for the first thing that is asked for."""
    with door(three) as (made, places):
        made.answers["/static/agent/manifest.json"] = answer
        wrong = {row.arch: row.problem for row in verify(places) if row.problem}
    assert set(wrong) == set(ARCHITECTURES)
    assert all(words in str(problem) for problem in wrong.values())


def test_a_file_without_end_is_not_read_to_its_end(three: Three) -> None:
    with door(three) as (made, places):
        entry = read_manifest(three.dist).builds["arm64"]
        made.answers[f"/static/agent/{entry.file}"] = Answer(200, bytes(2 * entry.size))
        rows = {row.arch: row for row in verify(places)[2:]}
    assert "is longer than" in str(rows["arm64"].problem)
    assert rows["amd64"].problem is None


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ({}, "the answer has no header X-Checksum-Md5"),
        ({"X-Checksum-Md5": "0" * 32}, "the header X-Checksum-Md5 says"),
    ],
)
def test_the_headers_of_a_control_plane_are_compared_too(three: Three, headers: dict[str, str], problem: str) -> None:
    with door(three, "server") as (made, places):
        content = three.file("server", "amd64").read_bytes()
        made.answers["/static/agent"] = Answer(200, content, headers)
        rows = {row.arch: row.problem for row in verify(places)[2:]}
    assert str(rows["amd64"]).startswith(problem)


def test_a_mirror_may_be_any_web_server_and_its_headers_must_not_lie(three: Three) -> None:
    with door(three) as (made, places):
        entry = read_manifest(three.dist).builds["amd64"]
        content = three.file("mirror", "amd64").read_bytes()
        path = f"/static/agent/{entry.file}"
        made.answers[path] = Answer(200, content)
        assert [row.problem for row in verify(places)] == [None] * 5
        made.answers[path] = Answer(200, content, {"X-Checksum-Sha256": "0" * 64})
        assert "the header X-Checksum-Sha256 says" in str(verify(places)[2].problem)


@contextmanager
def slow_host(first: bytes) -> Iterator[str]:
    """Accepts, says ``first``, and then nothing, without closing."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                held.append(connection)
                connection.sendall(first)

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    for connection in held:
        connection.close()


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 600\r\n\r\n{"])
def test_a_host_that_never_ends_its_answer_holds_nobody(three: Three, first: bytes) -> None:
    with slow_host(first) as url:
        done = run(
            *(SERVER, "artifacts", "verify", "--dist", str(three.dist), "--server", three.server.url),
            *("--mirror", url, "--deadline", "2", "-o", "json"),
            timeout=100,
        )
    rows = json.loads(done.stdout)
    assert done.returncode == 4
    assert [row["problem"] for row in rows["files"][:4]] == [None] * 4
    assert [row["problem"] for row in (*rows["files"][4:], *rows["scripts"])] == ["not done after 2 s"] * 3


def test_a_place_that_is_away_ends_with_4_and_the_others_are_shown(three: Three) -> None:
    words = ("verify", "--dist", str(three.dist), "--server", "http://127.0.0.1:9", "--mirror", three.mirror.url)
    away = run(SERVER, "artifacts", *words)
    assert away.returncode == 4
    assert "cannot reach http://127.0.0.1:9/static/agent/manifest.json" in away.stderr
    for entry in read_manifest(three.dist).builds.values():
        assert away.stdout.count(entry.sha256) == 2
    flip(three.file("mirror", "amd64"))
    assert run(SERVER, "artifacts", *words).returncode == 1


def test_json_is_one_document_with_what_was_found(three: Three) -> None:
    flip(three.file("mirror", "arm64"))
    done = run(
        *(SERVER, "artifacts", "verify", "--dist", str(three.dist), "-o", "json"),
        env={"HETEROFLEET_SERVER_URL": three.server.url, "HETEROFLEET_MIRROR_URL": three.mirror.url + "/"},
    )
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert set(document) == {"files", "scripts"}
    assert [(row["arch"], row["problem"] is None) for row in document["files"]] == [
        *((arch, True) for arch in (*ARCHITECTURES, *ARCHITECTURES)),
        ("amd64", True),
        ("arm64", False),
    ]
    assert [row["problem"] for row in document["scripts"]] == [None]
    assert "arm64: the file is not what the manifest beside it says" in done.stderr


@pytest.mark.parametrize("url", ["localhost:3333", "http://me:secret@host:3333", "ftp://host", "http://host/?x"])
def test_an_address_that_is_none_is_usage(three: Three, url: str) -> None:
    done = CliRunner().invoke(artifacts, ["verify", "--dist", str(three.dist), "--mirror", url])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "secret" not in done.stderr


def test_no_credential_and_no_proxy_of_the_environment_is_used(three: Three, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("default login me password secret\n")
    with door(three, "server") as (made, _):
        done = run(
            *(SERVER, "artifacts", "verify", "--dist", str(three.dist), "--server", made.url),
            env={"HOME": str(tmp_path), "http_proxy": "http://127.0.0.1:9", "HETEROFLEET_TOKEN": "secret"},
        )
        assert done.returncode == 0, done.stderr
        assert made.seen
        assert not [seen for seen in made.seen if "authorization" in seen.headers or "x-api-key" in seen.headers]


@pytest.mark.parametrize("server", ["", "http://fleet.example:3333", "https://[2001:db8::1]"])
@pytest.mark.parametrize("mirror", ["", "http://mirror.example:5173"])
def test_the_addresses_in_a_script_are_known_from_its_text(server: str, mirror: str) -> None:
    text = script(ALL_IN_ONE, server, mirror)
    assert addresses(text) == (server, mirror)
    for planted in (text + "\n", text[:-1], text.replace("set -", "set  -", 1), "<html>", ""):
        assert addresses(planted) is None


def test_without_a_first_manifest_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    with pytest.raises(VerifyError, match=r"manifest\.json: No such file"):
        verify([Folder(tmp_path)])
