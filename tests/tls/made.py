"""Certificates as tests need them: right ones, and each way to be wrong."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.timezone.utc)
DAY = datetime.timedelta(days=1)
PASSWORD = b"a canary of a password"
SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


class Pair(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: Any

    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        pem: bytes = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return pem


def pem(der: bytes, label: str = "CERTIFICATE") -> bytes:
    return f"-----BEGIN {label}-----\n{base64.encodebytes(der).decode()}-----END {label}-----\n".encode()


def name_of(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def key_usage(**granted: bool) -> x509.KeyUsage:
    names = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: granted.get(name, False) for name in names})


def signed(
    name: str,
    issuer: Pair | None = None,
    *,
    authority: bool = False,
    begin: datetime.datetime = NOW - DAY,
    end: datetime.datetime = NOW + 200 * DAY,
    usages: Sequence[x509.ObjectIdentifier] = (SERVER, CLIENT),
    san: Sequence[str] = ("127.0.0.1", "localhost"),
    crl_sign: bool = True,
    digital_signature: bool = True,
    key: Any = None,
) -> Pair:
    """A pair, signed by `issuer` or by itself. SANs: addresses, names and URIs, told apart by their form."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    above = issuer.certificate.subject if issuer else name_of(name)
    signer = issuer.key if issuer else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(name_of(name))
        .issuer_name(above)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if authority:
        builder = builder.add_extension(key_usage(key_cert_sign=True, crl_sign=crl_sign), critical=True)
    else:
        builder = builder.add_extension(key_usage(digital_signature=digital_signature), critical=True)
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage(list(usages)), critical=False)
        if san:
            names = x509.SubjectAlternativeName([general_name(one) for one in san])
            builder = builder.add_extension(names, critical=False)
    return Pair(builder.sign(signer, hashes.SHA256()), key)


def general_name(text: str) -> x509.GeneralName:
    if text.startswith("ft-"):
        return x509.UniformResourceIdentifier(text)
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def crl(
    issuer: Pair,
    revoked: Sequence[Pair] = (),
    *,
    number: int = 1,
    begin: datetime.datetime = NOW - DAY,
    end: datetime.datetime = NOW + 30 * DAY,
    key: Any = None,
) -> x509.CertificateRevocationList:
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.certificate.subject)
        .last_update(begin)
        .next_update(end)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key()), critical=False
        )
    )
    for one in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(one.certificate.serial_number)
        builder = builder.add_revoked_certificate(entry.revocation_date(NOW - DAY).build())
    return builder.sign(key or issuer.key, hashes.SHA256())


def crl_pem(*lists: x509.CertificateRevocationList) -> bytes:
    return b"".join(one.public_bytes(serialization.Encoding.PEM) for one in lists)


def p12(
    pair: Pair,
    *,
    password: bytes | None = PASSWORD,
    others: Sequence[Pair] = (),
    without_key: bool = False,
    without_certificate: bool = False,
) -> bytes:
    encryption: serialization.KeySerializationEncryption = (
        serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    )
    return pkcs12.serialize_key_and_certificates(
        b"x",
        None if without_key else pair.key,
        None if without_certificate else pair.certificate,
        [one.certificate for one in others] or None,
        encryption,
    )


@cache
def root() -> Pair:
    """One authority for all tests of a process."""
    return signed("root", authority=True)


@cache
def leaf() -> Pair:
    """Good on both sides."""
    return signed("leaf", root())


def signed_with_sha_1(directory: Path, issuer: Pair) -> Pair:
    """A pair that no library makes any more, but the openssl program."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = (
        x509.CertificateSigningRequestBuilder().subject_name(name_of("old digest")).sign(key, hashes.SHA256())
    )
    (directory / "request.pem").write_bytes(request.public_bytes(serialization.Encoding.PEM))
    (directory / "issuer.pem").write_bytes(issuer.pem() + issuer.key_pem())
    signs = "openssl x509 -req -sha1 -days 90 -in request.pem -CA issuer.pem -CAkey issuer.pem -set_serial 7 -out old.pem"
    subprocess.run(signs.split(), cwd=directory, check=True, capture_output=True)
    return Pair(x509.load_pem_x509_certificate((directory / "old.pem").read_bytes()), key)


class Place:
    """A directory in which everything is right, until a test breaks one thing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.keys: dict[str, Any] = {
            "server_cert_path": str(directory / "server.p12"),
            "client_cert_path": str(directory / "client.p12"),
            "ca_cert_path": str(directory / "ca.crt"),
            "crl_path": "",
            "cipher_list": "",
            "cert_expire_warning_time_in_day": 90,
        }
        self.put("server.p12", p12(leaf()), 0o600)
        self.put("client.p12", p12(leaf()), 0o600)
        self.put("ca.crt", root().pem())
        self.write_config()

    @property
    def config(self) -> Path:
        return self.directory / "config.json"

    def put(self, name: str, data: bytes, mode: int = 0o644) -> Path:
        # Whole in one moment: a process that looks at its files may look at any.
        path, beside = self.directory / name, self.directory / f".{name}"
        beside.write_bytes(data)
        beside.chmod(mode)
        beside.replace(path)
        return path

    def write_config(self, **changes: Any) -> None:
        self.keys.update(changes)
        self.put("config.json", json.dumps(self.keys).encode())

    def own(self, pair: Pair, **how: Any) -> None:
        """Present this pair on both sides."""
        for name in ("server.p12", "client.p12"):
            self.put(name, p12(pair, **how), 0o600)

    def lists(self, data: bytes) -> None:
        self.put("crl.pem", data)
        self.write_config(crl_path=str(self.directory / "crl.pem"))
