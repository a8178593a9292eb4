"""The public endpoints over a real server on loopback: no key, right headers, never another machine's file."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import requests

from runtime.protocol.manifest import read_manifest
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


def test_a_build_for_another_machine_is_not_handed_out(served: Served) -> None:
    """Both entries of the manifest name the arm64 file, and everything there agrees with its checksums."""
    listing = served.folder / "manifest.json"
    document = json.loads(listing.read_text())
    document["builds"]["amd64"] = document["builds"]["arm64"]
    listing.write_text(json.dumps(document))
    answer = get(served, "/static/agent?arch=amd64")
    assert (answer.status_code, answer.json()["code"]) == (404, "agent_build_missing")
    assert "for another machine (arm64)" in answer.json()["detail"]
    assert get(served, "/static/agent?arch=arm64").status_code == 200


@pytest.mark.parametrize(
    ("query", "status"), [("arch=arm64&arch=arm64", 200), ("arch=amd64&arch=arm64", 400), ("arch=arm64&arch=", 400)]
)
def test_two_architectures_are_none(served: Served, query: str, status: int) -> None:
    assert get(served, f"/static/agent?{query}").status_code == status


@pytest.mark.parametrize("arch", ["amd64", "arm64"])
def test_a_download_that_broke_off_goes_on_only_with_the_same_file(served: Served, arch: str) -> None:
    path = f"/static/agent?arch={arch}"
    entry = read_manifest(served.folder).builds[arch]
    content = (served.folder / entry.file).read_bytes()
    on = get(served, path, Range="bytes=4000-", **{"If-Range": f'"{entry.sha256}"'})
    assert (on.status_code, on.content) == (206, content[4000:])
    anew = get(served, path, Range="bytes=4000-", **{"If-Range": '"another build"'})
    assert (anew.status_code, anew.content) == (200, content)


@pytest.mark.parametrize("asked", ["bytes=5-2", "bytes=0-1,5-9", "pages=1-2", "bytes=", "x"])
def test_what_is_no_single_range_brings_the_whole_file(served: Served, asked: str) -> None:
    entry = read_manifest(served.folder).builds["amd64"]
    answer = get(served, "/static/agent", Range=asked)
    assert (answer.status_code, len(answer.content)) == (200, entry.size)


def test_head_says_what_get_says(served: Served) -> None:
    for path in ("/static/agent?arch=arm64", "/static/agent/manifest.json", "/install-agent.sh"):
        head, whole = requests.head(served.url + path, timeout=10), get(served, path)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("Content-Length", "ETag", "Accept-Ranges", "X-Checksum-Md5", "X-Checksum-Sha256", "Content-Type"):
            assert head.headers[name] == whole.headers[name], name
        # A range is part of GET only.
        assert requests.head(served.url + path, headers={"Range": "bytes=0-1"}, timeout=10).status_code == 200


def test_a_build_that_is_exchanged_is_handed_out_whole(served: Served, builds: Path) -> None:
    """Whoever began with the file of before gets all of it, whatever the manifest says by then."""
    entry = read_manifest(served.folder).builds["amd64"]
    with requests.get(f"{served.url}/static/agent", stream=True, timeout=10) as answer:
        first = next(answer.iter_content(1000))
        (served.folder / entry.file).unlink()
        (served.folder / "manifest.json").unlink()
        rest = b"".join(answer.iter_content(1 << 16))
    assert first + rest == (builds / entry.file).read_bytes()
