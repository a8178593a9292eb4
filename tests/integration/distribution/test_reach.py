"""The way from a node to its control plane: private CAs, proxies, IPv6, wrong answers, odd keys and labels."""

from __future__ import annotations

import json
import random
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.artifacts.scripts import SCRIPTS
from tests.integration.distribution.authority import Authority
from tests.integration.distribution.front import Answer, front
from tests.integration.distribution.site import KEY, SCRIPT, Site, changed, snapshot
from tests.lab import places

HERE = places.HOST_ADDRESS
SETTINGS = "/etc/heterofleet/agent.yaml"


@pytest.mark.case("FC-053")
def test_a_private_ca_from_the_system_or_a_file_or_a_clear_refusal(site: Site, tmp_path: Path) -> None:
    """curl and browsers accepted the server, the agent did not; people then switched verification off."""
    authority = Authority(tmp_path)
    site.node.put("/root/ca.pem", authority.file.read_bytes())
    store = "/etc/ssl/certs/ca-certificates.crt"  # what update-ca-certificates writes
    site.node.run(["cp", "-p", store, "/root/store"])
    try:
        with front(site.plane.url, tls=authority.context(HERE)) as door:
            before = snapshot(site.node, times=True)
            words = ["--key-file", KEY, "--server", door.url]
            done = site.install(*words)
            assert (done.returncode, done.stdout) == (4, ""), done.stderr
            assert len(done.stderr.splitlines()) == 1
            assert "its certificate was not accepted" in done.stderr and "give --ca-file FILE" in done.stderr
            done = site.install(*words, "--ca-file", KEY)
            assert (done.returncode, f"cannot take certificates from {KEY}" in done.stderr) == (2, True)
            assert changed(before, snapshot(site.node, times=True)) == []
            assert door.seen == []  # not even a request without verification

            done = site.install(*words, "--ca-file", "/root/ca.pem")
            assert done.returncode == 0, done.stderr
            assert site.node.get("/etc/heterofleet/ca.pem") == authority.file.read_bytes()
            again = site.install("--server", door.url)
            assert (again.returncode, "is there already" in again.stdout) == (0, True), again.stderr
            assert site.uninstall("--purge").returncode == 0

            site.node.sh(f"cat /root/ca.pem >>{store}")
            done = site.install(*words)
            assert done.returncode == 0, done.stderr
            assert "ca_file: null" in site.node.get(SETTINGS).decode()
            assert site.uninstall("--purge").returncode == 0
    finally:
        site.node.run(["mv", "/root/store", store])
    for days, address, reason in ((-1, HERE, "certificate has expired"), (2, "192.0.2.1", "IP address mismatch")):
        with front(site.plane.url, tls=authority.context(address, days=days)) as door:
            done = site.install("--key-file", KEY, "--server", door.url, "--ca-file", "/root/ca.pem")
            assert (done.returncode, reason in done.stderr) == (4, True), done.stderr
            assert len(done.stderr.splitlines()) == 1 and door.seen == []
    site.node.run(["rm", "/root/ca.pem"])


@pytest.mark.case("FC-051")
def test_a_proxy_is_used_as_the_agent_is_told_and_never_by_the_environment(site: Site, tmp_path: Path) -> None:
    """With proxy variables set, a script went one way and the agent, which does not read them, another."""
    dead = dict.fromkeys(("http_proxy", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
    done = site.install("--key-file", KEY, "--dry-run", env=dead)
    assert done.returncode == 0, done.stderr
    assert f"not used: http_proxy HTTPS_PROXY ALL_PROXY (the agent only knows the line proxy: in {SETTINGS})" in (
        done.stdout.replace("HTTPS_PROXY ALL_PROXY http_proxy", "http_proxy HTTPS_PROXY ALL_PROXY")
    )
    # An address that only the proxy knows the way to: whatever does not go through it cannot arrive.
    beyond = "http://10.255.255.1:3333"
    with front(site.plane.url) as proxy:
        login = proxy.url.replace("://", "://who:p%40ss-w0rd@")
        site.node.put(SETTINGS, f"# the site's own\nproxy: '{login}'  # ours\n", 0o600)
        done = site.install("--key-file", KEY, "--server", beyond, env=dead)
        assert done.returncode == 0, done.stderr
        wanted = ["/api/v1/agent/preflight", "/static/agent/manifest.json", "/static/agent", "/api/v1/agent/heartbeat"]
        assert [path for path in dict.fromkeys(proxy.paths()) if path in wanted] == wanted
        assert {one.target.startswith(beyond) for one in proxy.seen} == {True}
        assert len({one.headers.get("proxy-authorization") for one in proxy.seen} - {None}) == 1
        assert "p%40ss" not in done.stdout + done.stderr and "p@ss" not in done.stdout + done.stderr
        assert site.node.get(SETTINGS).decode().endswith(f"# the site's own\nproxy: '{login}'  # ours\n")
        assert site.uninstall("--purge").returncode == 0

        # With TLS through a tunnel, which the proxy cannot look into.
        authority = Authority(tmp_path)
        site.node.put("/root/ca.pem", authority.file.read_bytes())
        site.node.put(SETTINGS, f'proxy: "{proxy.url}"\n', 0o600)
        with front(site.plane.url, offset=5, tls=authority.context(HERE)) as door:
            proxy.seen.clear()
            words = ["--key-file", KEY, "--server", door.url, "--ca-file", "/root/ca.pem", "--dry-run"]
            done = site.install(*words)
            assert done.returncode == 0, done.stderr
            assert {one.target for one in proxy.seen} == {f"{HERE}:{places.port(5)}"}
            assert {one.method for one in proxy.seen} == {"CONNECT"} and len(door.seen) == 2
    # A proxy that is gone is said to be in between.
    done = site.install("--key-file", KEY, "--server", site.plane.url)
    assert done.returncode == 4 and f"(through the proxy of {SETTINGS})" in done.stderr
    site.node.run(["rm", "-r", "/root/ca.pem", "/etc/heterofleet"])


# One connection at a time is enough for a node; systemd ends it.
_FORWARDER = """
import socket, threading
def copy(a, b):
    try:
        while data := a.recv(65536): b.sendall(data)
    except OSError: pass
    finally:
        try: b.shutdown(socket.SHUT_WR)
        except OSError: pass
door = socket.create_server(("::1", 3333), family=socket.AF_INET6)
while True:
    one, _ = door.accept()
    two = socket.create_connection(("%s", %d))
    for pair in ((one, two), (two, one)): threading.Thread(target=copy, args=pair, daemon=True).start()
"""


@pytest.fixture
def six(site: Site) -> Iterator[str]:
    """The control plane at ::1 of the node, which has no IPv6 beyond itself."""
    switch = "/proc/sys/net/ipv6/conf/lo/disable_ipv6"
    network = ["nsenter", "-t", str(site.node.pid), "-n", "sh", "-c"]
    subprocess.run([*network, f"echo 0 >{switch}"], check=True)
    code = _FORWARDER % (HERE, places.port(2))
    site.node.run(["systemd-run", "--quiet", "--collect", "--unit=hf-six", "python3", "-c", code])
    site.node.sh("until ss -ltn | grep -q '\\[::1\\]:3333'; do :; done")
    yield "http://[::1]:3333"
    site.node.run(["systemctl", "stop", "hf-six"])
    subprocess.run([*network, f"echo 1 >{switch}"], check=True)


@pytest.mark.case("FC-052")
def test_ipv6_with_brackets_works_and_without_is_refused(site: Site, six: str) -> None:
    """An address without brackets was guessed at, and the guess was wrong for addresses that end in digits."""
    before = snapshot(site.node, times=True)
    for given, meant in {
        "http://::1:3333": "http://[::1]:3333 (or http://[::1:3333]:3333 if 3333 is part of the address)",
        "::1": "http://[::1]:3333",
        "fe80::5678": "http://[fe80::5678]:3333",
        "https://2001:db8::1": "https://[2001:db8::1]:3333",
        "http://[::1": "wanted a URL such as",
        "http://[::1]x:3333": "wanted a URL such as",
        "http://[beef]:3333": "wanted a URL such as",
    }.items():
        done = site.install("--key-file", KEY, "--server", given)
        assert (done.returncode, meant in done.stderr, given) == (2, True, given), done.stderr
    assert changed(before, snapshot(site.node, times=True)) == []
    site.node.run(["curl", "-fsSLo", SCRIPT, f"{six}/install-agent.sh"])
    done = site.install("--key-file", KEY)
    assert done.returncode == 0, done.stderr
    assert f'server_url: "{six}"' in site.node.get(SETTINGS).decode()


PAGE = b"<!DOCTYPE html><html><body>Please sign in</body></html>\n"
# Situation -> what is answered in place of a manifest or a build, and what must be said of it.
ANSWERS = {
    "404": (Answer(404, PAGE), "HTTP status 404"),
    "302": (Answer(302, b"", {"Location": "https://login.example/"}), "redirects to https://login.example/"),
    "a page": (Answer(200, PAGE, {"Content-Type": "text/html"}), "HTTP status 200"),
    "nothing": (Answer(200, b""), "HTTP status 200"),
    "cut short": (Answer(200, PAGE, length=4000), ""),
}


@pytest.mark.case("FC-056")
def test_what_is_no_build_is_never_put_in_the_place_of_one(site: Site) -> None:
    """Error pages and sign-in pages were stored as the program; the agent that had run was gone by then."""
    assert site.install("--key-file", KEY).returncode == 0
    pid = site.property("MainPID")
    manifest = json.loads((site.plane.builds_dir / "manifest.json").read_text())
    manifest["version"] = "99.0.0"
    manifest["builds"]["amd64"].update(sha256="0" * 64, size=100_000)
    newer = Answer(200, json.dumps(manifest).encode(), {"Content-Type": "application/json"})
    before = no_state(snapshot(site.node))
    with front(site.plane.url) as door:
        for path, code in {"/api/v1/agent/preflight": 4, "/static/agent/manifest.json": 6, "/static/agent": 6}.items():
            for name, (answer, words) in ANSWERS.items():
                door.answers = {"/static/agent/manifest.json": newer, path: answer}
                done = site.install("--server", door.url)
                assert (done.returncode, path, name) == (code, path, name), done.stderr
                assert f"{door.url}{path}" in done.stderr.replace(" refuses", "") or name == "cut short"
                assert words in done.stderr and door.url in done.stderr
        # The documented command: what curl does not take, sh does not get.
        for name, (answer, _) in ANSWERS.items():
            door.answers = {"/install-agent.sh": answer}
            documented = f"cd /root && curl -fsSo fetched {door.url}/install-agent.sh && sh fetched --key-file {KEY}"
            done = site.node.run(["sh", "-c", documented], check=False)
            assert (done.returncode != 0 or name in ("302", "nothing"), done.stdout) == (True, ""), name
    site.node.run(["rm", "-f", "/root/fetched"])
    assert changed(before, no_state(snapshot(site.node))) == []
    assert (site.property("ActiveState"), site.property("MainPID")) == ("active", pid)


def no_state(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith("/var/lib/heterofleet/agent/")]


PRINTABLE = "".join(map(chr, range(33, 127)))
KEYS = {
    "every printable character": PRINTABLE,
    "backwards": PRINTABLE[::-1],
    "of the case": "#lead-a%Hb%%c-p$word-x\"y'z-back\\slash\\",
    "random": "".join(random.Random(63).choices(PRINTABLE, k=64)),
    "a dash first": "-n-%s-$(id)-`id`-${HOME}",
}


@pytest.mark.case("FC-063")
def test_the_agent_sees_the_key_as_it_was_given(site: Site) -> None:
    """systemd expanded percent signs, quotes and backslashes broke a file, a shell cut the key at a dollar."""
    with front(site.plane.url) as door:
        door.key = site.plane.key  # for the control plane all of them are right
        for number, (name, key) in enumerate(KEYS.items()):
            door.seen.clear()
            site.node.put("/root/odd", key + "\n" * (number % 2), 0o600)
            given = ["--key-file", "/root/odd"] if number else []
            env = {} if number else {"HETEROFLEET_API_KEY": key}
            done = site.install("--server", door.url, *given, env=env)
            assert done.returncode == 0, (name, done.stderr)
            # The agent from before went on with its own key until it was ended.
            for path in ("/api/v1/agent/preflight", "/api/v1/agent/heartbeat"):
                seen = [one.headers["x-api-key"] for one in door.seen if one.target == path]
                assert seen[-1] == key, (name, path)
            assert site.node.get("/etc/heterofleet/agent.key").decode() == key + "\n"
        for words in (["systemctl", "show", "heterofleet-agent"], ["systemctl", "cat", "heterofleet-agent"]):
            assert key not in site.node.run(words).stdout
    site.node.run(["rm", "/root/odd"])


def test_odd_labels_arrive_and_impossible_ones_are_refused(site: Site) -> None:
    labels = {
        "site": "München / Halle 3",
        "glob": "* ? [a-z]",
        "shell": "$(touch /root/ran) `touch /root/ran` ${HOME} \\n %s",
        "quote": 'it\'s "so"',
        "yaml": "{a: [b, &c *d !e] - # %}",
        "empty": "",
        "equals": "a=b=c",
        "emoji": "🦊",
    }
    words = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
    done = site.install("--key-file", KEY, *words)
    assert done.returncode == 0, done.stderr
    seen = site.plane.get(f"/api/v1/nodes/{site.status()['node_id']}")
    assert seen["labels"] == labels
    assert site.node.run(["test", "-e", "/root/ran"], check=False).returncode == 1
    before = no_state(snapshot(site.node))
    for label in ("", "no-value", "=x", "a=b\nc=d", "bell=\a"):
        done = site.install("--label", label)
        assert (done.returncode, "wanted K=V" in done.stderr, label) == (2, True, label), done.stderr
    assert changed(before, no_state(snapshot(site.node))) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_host_header_that_is_no_host_gets_no_script(site: Site, name: str) -> None:
    for host in (
        b"$(reboot)",
        b"a;b",
        b"a'b",
        b'a"b',
        b"`id`",
        b"a b",
        b"a/b",
        b"a@b",
        b"a\\b",
        b"{{7*7}}",
        b"a%0ab",
        b"",
    ):
        with socket.create_connection((HERE, places.port(2)), timeout=10) as link:
            link.sendall(b"GET /%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (name.encode(), host))
            answer = b"".join(iter(lambda: link.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 400 "), (host, answer[:80])
        assert b"#!/bin/sh" not in answer
