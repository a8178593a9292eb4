"""A certificate authority of the tests' own."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates for addresses; ``file`` is its own certificate as PEM."""

    def __init__(self, folder: Path, name: str = "a private CA") -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        basic = x509.BasicConstraints(ca=True, path_length=None)
        self.file = folder / "ca.pem"
        self.file.write_bytes(_pem(self._sign(self._name, self._key, basic, days=2)))

    def context(self, address: str, *, days: int = 2) -> ssl.SSLContext:
        """For a server at ``address``; ``days`` until the certificate ends, negative: it has ended already."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
        pair = self._folder / f"{address}-{days}.pem"
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        pair.write_bytes(key.private_bytes(*form) + _pem(self._sign(subject, key, names, days=days)))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair)
        return context

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType, days: int
    ) -> x509.Certificate:
        ends = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=days)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(ends - datetime.timedelta(days=5))
            .not_valid_after(ends)
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .sign(self._key, hashes.SHA256())
        )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
