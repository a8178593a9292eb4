"""Where a credential goes, and where it never does: the agent's calls, the command line's, and the scripts'."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime.agent.link.client import ServerClient
from runtime.agent.link.errors import Unavailable
from runtime.agent.settings import AgentSettings
from runtime.artifacts.scripts import templates_folder
from runtime.cli.client import Client
from runtime.cli.errors import CliError, ExitCode
from runtime.cli.settings import CliSettings, connection
from runtime.protocol.settings import SettingsError
from tests.integration.agent_link.stub_server import Reply, StubServer, stub_server
from tests.integration.agent_link.test_client_tls import make_certificate
from tests.unit.agent_link.agent_stubs import StubIdentity

KEY = "agents-key-0123456789"
TOKEN = "hft_operators-token-0123456789"
HELPER = (templates_folder() / "_helper.py").read_text()

Outcome = tuple[bool, str]
"""Whether the call brought an answer, and what was said of it."""


def agent_settings(url: str, **more: object) -> AgentSettings:
    return AgentSettings(server_url=url, api_key=KEY, **more)  # type: ignore[arg-type]


def by_agent(url: str, **more: object) -> Outcome:
    client = ServerClient(agent_settings(url, **more), StubIdentity(), read_s=3)  # type: ignore[arg-type]
    try:
        client.pending()
    except Unavailable as error:
        return False, str(error)
    finally:
        client.close()
    return True, ""


def by_doorbell(url: str, **more: object) -> Outcome:
    client = ServerClient(agent_settings(url, **more), StubIdentity(), read_s=3)  # type: ignore[arg-type]
    try:
        client.doorbell(f"{url}/api/v1/agent/doorbell", 3).close()
    except Unavailable as error:
        return False, str(error)
    finally:
        client.close()
    return True, ""


def by_operator(url: str, **more: object) -> Outcome:
    settings = CliSettings(server_url=url, token=TOKEN, timeout_s=3, **more)  # type: ignore[arg-type]
    origins = dict.fromkeys(("server_url", "token", "ca_file"), "the test")
    try:
        Client(connection(settings, origins)[0]).get("/api/v1/nodes")
    except CliError as error:
        return False, error.message
    return True, ""


def by_script(url: str, ca_file: str = "") -> Outcome:
    done = subprocess.run(
        [sys.executable, "-Ic", HELPER, "preflight", url, ca_file],
        input=KEY,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.returncode == 0, done.stderr


CLIENTS: dict[str, Callable[..., Outcome]] = {
    "agent": by_agent,
    "doorbell": by_doorbell,
    "operator": by_operator,
    "script": by_script,
}


@pytest.fixture(params=CLIENTS)
def call(request: pytest.FixtureRequest) -> Callable[..., Outcome]:
    return CLIENTS[request.param]


@pytest.fixture
def server() -> Iterator[StubServer]:
    with stub_server() as made:
        answer = {"control_plane_id": "c", "tasks": 0, "slices": 0, "images": 0, "files": 0}
        for path in ("/api/v1/agent/pending", "/api/v1/agent/preflight", "/api/v1/agent/doorbell", "/api/v1/nodes"):
            made.answers[path] = Reply(200, answer)
        yield made


@pytest.fixture
def other() -> Iterator[StubServer]:
    with stub_server() as made:
        yield made


@pytest.mark.parametrize(
    "where",
    [
        "same place",
        "relative",
        "other port",
        "other name",
        "other scheme",
        "with a login",
        "without a scheme",
        "nowhere",
    ],
)
def test_no_redirect_is_followed(
    server: StubServer, other: StubServer, call: Callable[..., Outcome], where: str
) -> None:
    """Whatever the status and wherever to: nothing is asked a second time, and the target is named."""
    target = {
        "same place": f"{server.url}/elsewhere",
        "relative": "/elsewhere",
        "other port": f"{other.url}/elsewhere",
        "other name": f"http://localhost:{other.port}/elsewhere",
        "other scheme": f"https://127.0.0.1:{other.port}/elsewhere",
        "with a login": f"http://user:password@127.0.0.1:{other.port}/elsewhere",
        "without a scheme": f"//127.0.0.1:{other.port}/elsewhere",
        "nowhere": "",
    }[where]
    for status in (301, 302, 303, 307, 308):
        server.requests.clear()
        for path in list(server.answers):
            server.answers[path] = Reply(status, b"", {"Location": target} if target else {})
        good, said = call(server.url)
        assert not good and ("redirect" in said or f"answered {status}" in said)
        assert target in said
        assert other.requests == [] and len(server.requests) == 1
        assert KEY not in said and TOKEN not in said


@pytest.mark.case("FC-051")
def test_neither_netrc_nor_a_proxy_of_the_environment_is_used(
    server: StubServer, other: StubServer, call: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What happened: with HTTP_PROXY set, calls to loopback went to the proxy, and failed there."""
    for name in (".netrc", "_netrc", "elsewhere"):
        (tmp_path / name).write_text("default login anybody password secret-of-netrc\n")
        (tmp_path / name).chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "elsewhere"))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, other.url)
        monkeypatch.setenv(name.upper(), other.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert call(server.url) == (True, "")
    assert other.requests == []
    (asked,) = server.requests
    assert asked.headers.get("authorization") in (None, f"Bearer {TOKEN}")
    assert "proxy-authorization" not in asked.headers and "cookie" not in asked.headers


@pytest.mark.parametrize("call", [by_agent, by_operator], ids=["agent", "operator"])
def test_a_proxy_that_was_configured_is_used_and_its_login_is_not_told(
    other: StubServer, call: Callable[..., Outcome]
) -> None:
    proxy = f"http://proxy-user:pr0xy-pass+word@127.0.0.1:{other.port}"
    call("http://10.255.255.1:3333", proxy=proxy)
    assert other.requests[0].path.startswith("http://10.255.255.1:3333/")
    assert other.requests[0].headers["proxy-authorization"].startswith("Basic ")
    other.close()
    good, said = call("http://10.255.255.1:3333", proxy=proxy)
    assert not good and "pr0xy" not in said


@pytest.fixture
def secure(server: StubServer, tmp_path: Path) -> tuple[str, str]:
    """The same server behind a certificate for 127.0.0.1 of a CA that nobody knows: (URL, CA file)."""
    ca_file, pair = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    return f"https://127.0.0.1:{server.port}", str(ca_file)


@pytest.mark.case("FC-053")
def test_a_private_ca_by_the_setting_by_the_system_and_not_at_all(
    secure: tuple[str, str], server: StubServer, call: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happened: the library brought its own list of CAs, and people switched verification off."""
    url, ca_file = secure
    good, said = call(url)
    assert not good and "certificate" in said and len(said.strip().splitlines()) == 1
    assert server.requests == [], "something was sent without a certificate that is trusted"
    assert call(url, ca_file=ca_file) == (True, "")
    if call is by_script:
        return  # it takes the list of the node's own Python, which is the system's
    monkeypatch.setattr("runtime.protocol.credentials.SYSTEM_CA_FILES", (ca_file,))
    monkeypatch.setattr("ssl.get_default_verify_paths", lambda: ssl.DefaultVerifyPaths(*[None] * 6))
    assert call(url) == (True, "")


def test_a_certificate_for_another_name_is_refused(
    secure: tuple[str, str], server: StubServer, call: Callable[..., Outcome]
) -> None:
    url, ca_file = secure
    good, said = call(url.replace("127.0.0.1", "localhost"), ca_file=ca_file)
    assert not good and "match" in said
    assert server.requests == []


def test_plain_http_is_not_tried_after_a_failed_handshake(server: StubServer, call: Callable[..., Outcome]) -> None:
    """A server that speaks plain HTTP where TLS is wanted gets no key: no second try in the open."""
    good, _ = call(server.url.replace("http:", "https:"))
    assert not good
    assert server.requests == []


@pytest.mark.parametrize(
    ("server_url", "url"),
    [
        ("http://127.0.0.1:3333", "http://127.0.0.2:3334/x"),
        ("http://127.0.0.1:3333", "http://localhost:3334/x"),
        ("http://127.0.0.1:3333", "http://127.0.0.1.example:3334/x"),
        ("http://127.0.0.1:3333", "http://127.0.0.1:3334@127.0.0.2/x"),
        ("http://127.0.0.1:3333", "http://127.0.0.1\\@127.0.0.2/x"),
        ("http://127.0.0.1:3333", "http://127.0.0.2#@127.0.0.1/x"),
        ("http://127.0.0.1:3333", "http://127.0.0.2?@127.0.0.1/x"),
        ("http://127.0.0.1:3333", "http://127.0.0.1 .example/x"),
        ("http://127.0.0.1:3333", "http://127.0.0.1\t.example/x"),
        ("http://127.0.0.1:3333", "//127.0.0.1:3334/x"),
        ("http://127.0.0.1:3333", "file:///etc/passwd"),
        ("http://[::1]:3333", "http://[::2]:3334/x"),
        ("http://[::1]:3333", "http://127.0.0.1:3334/x"),
        ("https://cp.example", "http://cp.example:3334/x"),
        ("https://cp.example", "https://cp.example.evil.example/x"),
        ("https://cp.example", "https://evil.example/cp.example"),
        ("https://cp.example", "https://cp.example@evil.example/x"),
    ],
)
def test_the_doorbell_of_another_host_or_a_weaker_scheme_gets_no_key(
    server_url: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's answer names the doorbell, and an answer may have been changed on its way."""
    client = ServerClient(agent_settings(server_url), StubIdentity())  # type: ignore[arg-type]
    monkeypatch.setattr(client, "_send", lambda *call: pytest.fail(f"it would ask {call[2]}"))
    with pytest.raises(Unavailable):
        client.doorbell(url, 1)


@pytest.mark.parametrize(
    ("server_url", "url", "asked"),
    [
        ("http://127.0.0.1:3333", "http://127.0.0.1:3334/x", "http://127.0.0.1:3334/x"),
        ("http://127.0.0.1:3333", "https://127.0.0.1:3334/x", "https://127.0.0.1:3334/x"),
        ("https://CP.example", "https://cp.EXAMPLE:3334/x", "https://cp.example:3334/x"),
        ("http://[::1]:3333", "http://[::1]:3334/x?node_id=other", "http://[::1]:3334/x"),
    ],
)
def test_the_doorbell_of_the_servers_host_is_asked_as_it_was_checked(
    server_url: str, url: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ServerClient(agent_settings(server_url), StubIdentity())  # type: ignore[arg-type]
    seen: list[str] = []

    def send(_session: object, _method: str, target: str, *_more: object) -> object:
        seen.append(target)
        raise Unavailable("not really")

    monkeypatch.setattr(client, "_send", send)
    with pytest.raises(Unavailable, match="not really"):
        client.doorbell(url, 1)
    assert seen == [asked]


ODD = [
    "two words",
    "line\r\nX-Evil: 1",
    "line\nmore",
    "tab\there",
    "clé-0123456789abc",
    "nul\x00here",
    "\u2028" * 16,
    " ",
]


@pytest.mark.parametrize("credential", ODD)
def test_a_credential_that_no_header_carries_is_refused_before_it_is_sent(
    credential: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every place where one can be given; it is not shown."""
    from runtime.agent.settings import load_settings

    environ = {"HETEROFLEET_SERVER_URL": "http://127.0.0.1:3333"}
    (tmp_path / "key").write_bytes(credential.encode())
    (tmp_path / "key").chmod(0o600)
    file = tmp_path / "agent.yaml"
    for settings in ({"api_key": credential}, {"api_key_file": str(tmp_path / "key")}):
        file.write_text(json.dumps(settings))
        with pytest.raises(SettingsError) as refused:
            load_settings(file, environ)
        assert credential not in str(refused.value) or not credential.strip()
    for settings in (CliSettings(token=credential), CliSettings(token_file=str(tmp_path / "key"))):
        to = CliSettings(**{**vars(settings), "server_url": "http://127.0.0.1:3333"})
        origins = dict.fromkeys(vars(to), "the test")
        with pytest.raises(CliError) as stopped:
            connection(to, origins)
        assert stopped.value.exit_code in (ExitCode.USAGE, ExitCode.NOT_AUTHORISED)
        assert credential not in stopped.value.message or not credential.strip()


SPECIAL = [
    "a\\b'c\"d$e`f%g#h",
    "key: with-colon,[and]{more}",
    "%h%i$$HOME${PATH}",
    "'quoted'",
    "!tag&anchor*alias",
    "~null",
    "0x1f:30",
]


@pytest.mark.case("FC-063")
@pytest.mark.parametrize("key", [*(key.replace(" ", "_") for key in SPECIAL), "".join(map(chr, range(33, 127)))])
def test_a_key_with_special_characters_arrives_as_it_is(server: StubServer, tmp_path: Path, key: str) -> None:
    """What happened: a '$', '%' or '#' in a key was eaten by the file that it went through."""
    from runtime.agent.settings import load_settings

    (tmp_path / "key").write_text(f"{key}\n")
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "by_file.yaml").write_text(f"server_url: {server.url}\napi_key_file: {tmp_path}/key\n")
    (tmp_path / "by_value.yaml").write_text(json.dumps({"server_url": server.url, "api_key": key}))
    (tmp_path / "neither.yaml").write_text(f"server_url: {server.url}\n")
    for name, environ in (("by_file", {}), ("by_value", {}), ("neither", {"HETEROFLEET_API_KEY": key})):
        loaded = load_settings(tmp_path / f"{name}.yaml", environ)
        client = ServerClient(loaded.settings, StubIdentity())  # type: ignore[arg-type]
        client.pending()
        client.close()
        assert server.requests[-1].headers["x-api-key"] == key


@pytest.mark.case("FC-029")
def test_a_child_of_the_agent_has_no_secret_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happened: a token that was given by a variable showed up in what the agent started."""
    from runtime.agent.hardware.tools import tool_environment

    for name in ("API_KEY", "SERVER_URL", "PROXY", "HARDWARE__DETECT"):
        monkeypatch.setenv(f"HETEROFLEET_{name}", KEY)
    assert KEY not in str(tool_environment())


def test_a_ca_file_that_is_not_there_is_said_at_once() -> None:
    good, said = by_operator("https://127.0.0.1:1", ca_file="/nowhere/ca.pem")
    assert not good and "/nowhere/ca.pem" in said


def test_an_answer_that_repeats_the_token_is_masked(server: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """What stands before a control plane may show what it was sent, in whatever form."""
    import base64

    shown = base64.b64encode(f"Bearer {TOKEN}".encode()).decode()
    for path in list(server.answers):
        server.answers[path] = Reply(500, f"you sent {TOKEN} ({shown})".encode(), {"Content-Type": "text/plain"})
    settings = CliSettings(server_url=server.url, token=TOKEN, timeout_s=3)
    to, _ = connection(settings, dict.fromkeys(vars(settings), "the test"))
    with pytest.raises(CliError) as stopped:
        Client(to).get("/api/v1/nodes")
    stopped.value.show()
    said = capsys.readouterr().err
    assert "you sent ********" in said and TOKEN[:12] not in said
