"""The public endpoints over a real server on loopback: no key, right headers, never another machine's file."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import requests

from runtime.artifacts.errors import VerifyError
from runtime.artifacts.verify import Folder, Web, verify
from runtime.protocol.manifest import ARCHITECTURES, read_manifest
from tests.integration.distribution.conftest import Served


def get(served: Served, path: str, **headers: str) -> requests.Response:
    return requests.get(served.url + path, headers=headers, timeout=10, allow_redirects=False)


@pytest.mark.parametrize(("query", "arch"), [("", "amd64"), ("?arch=amd64", "amd64"), ("?arch=arm64", "arm64")])
def test_the_file_of_an_architecture(served: Served, query: str, arch: str) -> None:
    entry = read_manifest(served.folder).builds[arch]
    answer = get(served, f"/static/agent{query}")
    assert answer.status_code == 200
    assert answer.content == (served.folder / entry.file).read_bytes()
    assert answer.headers["Content-Length"] == str(entry.size)
    assert answer.headers["Accept-Ranges"] == "bytes"
    assert answer.headers["ETag"] == f'"{entry.sha256}"'
    assert answer.headers["X-Checksum-Md5"] == entry.md5
    assert answer.headers["X-Checksum-Sha256"] == entry.sha256
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [("bytes=0-9", 0, 9), ("bytes=1000000-1000099", 1000000, 1000099), ("bytes=-5", -5, None)],
)
def test_ranges(served: Served, asked: str, first: int, last: int | None) -> None:
    content = (served.folder / read_manifest(served.folder).builds["arm64"].file).read_bytes()
    answer = get(served, "/static/agent?arch=arm64", Range=asked)
    assert answer.status_code == 206
    assert answer.content == content[first : None if last is None else last + 1]
    assert answer.headers["Content-Range"].endswith(f"/{len(content)}")


def test_a_range_beyond_the_end_is_416(served: Served) -> None:
    assert get(served, "/static/agent", Range="bytes=999999999-").status_code == 416


@pytest.mark.parametrize("path", ["/static/agent?arch=arm64", "/static/agent/manifest.json", "/install-agent.sh"])
def test_what_was_fetched_before_is_not_sent_again(served: Served, path: str) -> None:
    first = get(served, path)
    assert first.headers["Accept-Ranges"] == "bytes"
    again = get(served, path, **{"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    head = requests.head(served.url + path, timeout=10)
    assert (head.status_code, head.headers["Content-Length"]) == (200, str(len(first.content)))


@pytest.mark.parametrize("arch", ["mips", "", "AMD64", "../amd64", "x86_64"])
def test_an_unknown_architecture_is_400(served: Served, arch: str) -> None:
    answer = get(served, f"/static/agent?arch={arch}")
    assert (answer.status_code, answer.json()["code"]) == (400, "unknown_arch")
    assert "amd64 or arm64" in answer.json()["detail"]


def test_a_missing_build_is_404_with_the_guide_and_never_the_other_file(served: Served) -> None:
    document = json.loads((served.folder / "manifest.json").read_text())
    del document["builds"]["arm64"]
    (served.folder / "manifest.json").write_text(json.dumps(document))
    answer = get(served, "/static/agent?arch=arm64")
    assert (answer.status_code, answer.json()["code"]) == (404, "agent_build_missing")
    assert "heterofleet artifacts build" in answer.json()["detail"]
    assert str(served.folder) in answer.json()["detail"]
    assert get(served, "/static/agent?arch=amd64").status_code == 200


def test_no_builds_at_all(served: Served) -> None:
    (served.folder / "manifest.json").unlink()
    for path in ("/static/agent", "/static/agent/manifest.json"):
        answer = get(served, path)
        assert (answer.status_code, answer.json()["code"]) == (404, "agent_build_missing")


def test_a_file_that_is_not_what_its_manifest_says_is_not_handed_out(served: Served) -> None:
    path = served.folder / read_manifest(served.folder).builds["amd64"].file
    assert get(served, "/static/agent").status_code == 200
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    answer = get(served, "/static/agent")
    assert (answer.status_code, answer.json()["code"]) == (404, "agent_build_missing")
    assert "not what its manifest says" in answer.json()["detail"]


@pytest.mark.parametrize("text", ["<html>", "{}", '{"version": "../x"}'])
def test_a_wrong_manifest_is_not_handed_out(served: Served, text: str) -> None:
    (served.folder / "manifest.json").write_text(text)
    assert get(served, "/static/agent/manifest.json").json()["code"] == "agent_build_missing"


@pytest.mark.parametrize("name", ["install-agent.sh", "uninstall-agent.sh"])
def test_scripts_carry_the_address_they_were_asked_at(served: Served, name: str) -> None:
    answer = get(served, f"/{name}", Host="fleet.example:3333")
    assert answer.headers["Content-Type"] == "text/x-shellscript; charset=utf-8"
    assert f"http://fleet.example:3333/{name}" in answer.text


@pytest.mark.parametrize("host", ["$(reboot)", "a;b", "a'b", "a/b", ""])
def test_a_host_header_that_a_shell_could_read_differently_is_400(served: Served, host: str) -> None:
    address = served.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=10) as connection:
        connection.sendall(f"GET /install-agent.sh HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert answer.splitlines()[0].split()[1] == "400"
    assert json.loads(answer.split("\r\n\r\n", 1)[1])["code"] == "bad_parameter"


def test_verify_finds_a_planted_byte_in_each_place(served: Served, builds: Path) -> None:
    places = [Folder(builds), Web(served.url), Folder(served.folder)]
    assert [(row.arch, row.problem) for row in verify(places)] == [
        (arch, None) for _ in places for arch in ARCHITECTURES
    ]
    path = served.folder / read_manifest(served.folder).builds["arm64"].file
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    problems = {(row.place, row.arch): row.problem for row in verify(places) if row.problem}
    assert problems.keys() == {(places[1].name, "arm64"), (places[2].name, "arm64")}
    assert (
        "agent_build_missing" in problems[places[1].name, "arm64"]
        or "not what its" in problems[places[1].name, "arm64"]
    )
    assert problems[places[2].name, "arm64"] == "the file is not what the manifest beside it says"


def test_verify_finds_another_build_than_ours(served: Served, builds: Path) -> None:
    document = json.loads((served.folder / "manifest.json").read_text())
    document["builds"]["amd64"] = document["builds"]["arm64"]
    (served.folder / "manifest.json").write_text(json.dumps(document))
    rows = verify([Folder(builds), Web(served.url)])
    assert [row.problem for row in rows[:2]] == [None, None]
    assert "another build" in str(rows[2].problem)


def test_verify_says_when_nothing_answers(builds: Path) -> None:
    with pytest.raises(VerifyError, match="cannot reach") as failed:
        verify([Folder(builds), Web("http://127.0.0.1:9")])
    assert failed.value.unreachable
