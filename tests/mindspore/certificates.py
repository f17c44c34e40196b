"""Certificates as MindSpore's config.json names them, for its connections and ours: a root, and a PKCS12 file for either end."""

from __future__ import annotations

import datetime
import ipaddress
import json
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PASSWORD = "open-sesame"
CIPHERS = "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384"
_DAY = datetime.timedelta(days=1)


def write(directory: Path) -> Path:
    """Make them all again; gives the path of config.json."""
    root_key = _key()
    root = _certificate("root", root_key, root_key, is_root=True)
    (directory / "root.pem").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    for end in ("server", "client"):
        key = _key()
        bundle = pkcs12.serialize_key_and_certificates(
            end.encode(),
            key,
            _certificate(end, key, root_key, is_root=False),
            None,
            serialization.BestAvailableEncryption(PASSWORD.encode()),
        )
        (directory / f"{end}.p12").touch(mode=0o600)
        (directory / f"{end}.p12").write_bytes(bundle)
    config = directory / "config.json"
    config.write_text(
        json.dumps(
            {
                "server_cert_path": str(directory / "server.p12"),
                "client_cert_path": str(directory / "client.p12"),
                "ca_cert_path": str(directory / "root.pem"),
                "crl_path": "",
                "cipher_list": CIPHERS,
                "cert_expire_warning_time_in_day": 90,
            }
        )
    )
    return config


def _key() -> rsa.RSAPrivateKey:
    # MindSpore's security level demands 3072.
    return rsa.generate_private_key(public_exponent=65537, key_size=3072)


def _certificate(
    name: str, key: rsa.RSAPrivateKey, root_key: rsa.RSAPrivateKey, *, is_root: bool
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.timezone.utc)
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=True,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_root,
        crl_sign=is_root,
        encipher_only=False,
        decipher_only=False,
    )
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name("root"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + 365 * _DAY)
        .add_extension(x509.BasicConstraints(ca=is_root, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(identifier, critical=False)
    )
    if not is_root:
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = builder.add_extension(here, critical=False).add_extension(usages, critical=False)
    return builder.sign(root_key, hashes.SHA256())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
