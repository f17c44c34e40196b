"""A certificate whose names cannot be read restricts nobody less: who holds it is let in as nobody at all."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtensionOID

from recovery.errors import CertificateError
from recovery.tls.identity import identity_of
from tests.tls import made

_URI = b"\x86\x0aft-node:w0"
_EDI_PARTY = b"\xa5\x05\xa1\x03\x0c\x01x"
"""A name of a kind that OpenSSL reads and our library does not."""


def _named(names: bytes) -> x509.Certificate:
    pair = made.leaf().certificate
    builder = (
        x509.CertificateBuilder()
        .subject_name(pair.subject)
        .issuer_name(pair.issuer)
        .serial_number(1)
        .not_valid_before(pair.not_valid_before_utc)
        .not_valid_after(pair.not_valid_after_utc)
        .public_key(pair.public_key())
    )
    raw = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes((0x30, len(names))) + names)
    return builder.add_extension(raw, critical=False).sign(made.root().key, hashes.SHA256())


def test_a_name_that_can_be_read_counts() -> None:
    found = identity_of(_named(_URI))
    assert found is not None
    assert found.node_id == "w0"


@pytest.mark.parametrize("names", [_URI + _EDI_PARTY, _URI + b"\x87\x03\x01\x02\x03", b"\x05\x00"])
def test_a_certificate_whose_names_cannot_be_read_names_nobody_that_is_let_in(names: bytes) -> None:
    with pytest.raises(CertificateError, match=r"TLS_IDENTITY: .*cannot be read"):
        identity_of(_named(names))
