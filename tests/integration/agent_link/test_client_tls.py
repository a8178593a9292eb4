"""Whose certificates the agent believes."""

from __future__ import annotations

import datetime
import ipaddress
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from runtime.agent.link.client import ServerClient
from runtime.agent.link.errors import Unavailable
from runtime.agent.settings import AgentSettings
from runtime.protocol.credentials import ca_bundle
from tests.integration.agent_link.stub_server import StubServer
from tests.unit.agent_link.agent_stubs import StubIdentity


def make_certificate(tmp_path):
    """A CA of the test's own, and a key with its certificate for 127.0.0.1."""
    now = datetime.datetime.now(datetime.timezone.utc)
    validity = (now - datetime.timedelta(days=1), now + datetime.timedelta(days=1))

    def build(subject, issuer, key, signer, extension):
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(validity[0])
            .not_valid_after(validity[1])
            .add_extension(extension, critical=False)
            .sign(signer, hashes.SHA256())
        )

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = build("test CA", "test CA", ca_key, ca_key, x509.BasicConstraints(ca=True, path_length=None))
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    own = build("server", "test CA", key, ca_key, names)
    ca_file, pair = tmp_path / "ca.pem", tmp_path / "server.pem"
    ca_file.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    pair.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + own.public_bytes(serialization.Encoding.PEM)
    )
    return ca_file, pair


@pytest.fixture
def secure(server: StubServer, tmp_path):
    ca_file, pair = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    return f"https://127.0.0.1:{server.port}", str(ca_file)


def ask(url: str, ca_file: str | None = None) -> None:
    settings = AgentSettings(server_url=url, api_key="0123456789abcdef", ca_file=ca_file)
    ServerClient(settings, StubIdentity()).pending()


@pytest.mark.case("FC-053")
def test_a_private_ca_by_the_system_by_the_setting_and_not_at_all(secure, monkeypatch, tmp_path) -> None:
    """What happened: the library brought its own list of CAs, and people switched verification off."""
    url, ca_file = secure
    with pytest.raises(Unavailable, match="set ca_file to the CA") as caught:
        ask(url)
    assert "\n" not in caught.value.why and not caught.value.answered
    ask(url, ca_file)
    monkeypatch.setattr("runtime.protocol.credentials.SYSTEM_CA_FILES", (ca_file,))
    monkeypatch.setattr("ssl.get_default_verify_paths", lambda: ssl.DefaultVerifyPaths(*[None] * 6))
    ask(url)


def test_variables_do_not_change_whom_the_agent_believes(secure, monkeypatch) -> None:
    url, ca_file = secure
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, ca_file)
    with pytest.raises(Unavailable, match="the certificate was not accepted"):
        ask(url)


def test_the_library_s_list_is_the_last_resort(monkeypatch) -> None:
    monkeypatch.setattr("runtime.protocol.credentials.SYSTEM_CA_FILES", ("/nowhere",))
    monkeypatch.setattr("ssl.get_default_verify_paths", lambda: ssl.DefaultVerifyPaths(*[None] * 6))
    assert ca_bundle(None) is None
    assert ca_bundle("/own.pem") == "/own.pem"
