"""`crl_path`: which certificates are taken back. A list is believed only where its authority is ours and has signed it."""

from __future__ import annotations

import datetime
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from recovery.errors import CertificateError, ChannelFileError
from recovery.tls.certificates import (
    UNREADABLE,
    day,
    extension_of,
    may_sign_lists,
    printable,
    serial_of,
    subject_of,
)
from recovery.tls.checked_files import read_public

List = x509.CertificateRevocationList

_LABEL = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----")
_PEM_LIST = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


def read_revocation_lists(
    path: Path,
    authorities: Sequence[x509.Certificate],
    now: datetime.datetime,
    *,
    ca_file: str,
) -> tuple[List, ...]:
    """Read the lists of one file, PEM (one or more) or DER.

    Args:
        path: of the file.
        authorities: those that may have signed them: those that are trusted, and those between them and a leaf.
        now: this moment, with its time zone.
        ca_file: where the authorities come from, for the error.

    Raises:
        ChannelFileError: the file cannot be read, or holds something else.
        CertificateError: a list is not valid now, or not of one of these authorities.
    """
    file = str(path)
    data = read_public(path, "crl_path")
    found = _parsed(data, file)
    for crl in found:
        _check(crl, authorities, now, file=file, ca_file=ca_file)
    return found


def demand(
    lists: Sequence[List],
    chain: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
    file: str,
) -> None:
    """Every authority that has signed a certificate of the chain needs a list.

    Raises:
        CertificateError: one has none.
    """
    issuers = {crl.issuer for crl in lists}
    needed = [
        *(certificate.issuer for certificate in chain),
        *(authority.subject for authority in authorities),
    ]
    missing = next((issuer for issuer in needed if issuer not in issuers), None)
    if missing is not None:
        raise CertificateError("TLS_CRL_MISSING_ISSUER", file=file, issuer=printable(missing))


def revoked_in(
    lists: Sequence[List], chain: Sequence[x509.Certificate]
) -> tuple[x509.Certificate, x509.RevokedCertificate] | None:
    """The first certificate of the chain that is taken back, and its entry; None: none is."""
    for certificate in chain:
        for crl in lists:
            if crl.issuer == certificate.issuer:
                entry = _entry_of(certificate, crl)
                if entry is not None:
                    return certificate, entry
    return None


def _entry_of(certificate: x509.Certificate, crl: List) -> x509.RevokedCertificate | None:
    serial = serial_of(certificate)
    if serial >= 0:
        return crl.get_revoked_certificate_by_serial_number(serial)
    # What looks it up takes no negative number.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return next((entry for entry in crl if entry.serial_number == serial), None)


def number_of(one: List) -> int | None:
    """The number of a list, which rises with each that the authority publishes; None: it has none."""
    try:
        found = extension_of(one, x509.CRLNumber)
    except UNREADABLE:
        return None
    return None if found is None else found.crl_number


def pem_of(lists: Sequence[List]) -> str:
    """Only the lists, whatever else stood in their file."""
    return b"".join(crl.public_bytes(serialization.Encoding.PEM) for crl in lists).decode("ascii")


def _parsed(data: bytes, file: str) -> tuple[List, ...]:
    labels = [label.decode("ascii") for label in _LABEL.findall(data)]
    foreign = next((label for label in labels if label != "X509 CRL"), None)
    if foreign is not None:
        raise ChannelFileError("TLS_CRL_FOREIGN_CONTENT", file=file, kind=foreign.lower())
    try:
        if not labels:
            return (x509.load_der_x509_crl(data),)
        pieces = _PEM_LIST.findall(data)
        if len(pieces) == len(labels):
            return tuple(x509.load_pem_x509_crl(piece) for piece in pieces)
    except UNREADABLE:
        pass
    raise ChannelFileError("TLS_CRL_UNREADABLE", file=file, size=len(data))


def _check(
    crl: List, authorities: Sequence[x509.Certificate], now: datetime.datetime, *, file: str, ca_file: str
) -> None:
    try:
        issuer = printable(crl.issuer)
        signers = [authority for authority in authorities if authority.subject == crl.issuer]
        signer = next((signer for signer in signers if crl.is_signature_valid(signer.public_key())), None)  # type: ignore[arg-type]  # a kind that cannot sign is a TypeError
        begin, end = crl.last_update_utc, crl.next_update_utc
        _ = [entry.revocation_date_utc for entry in crl], crl.extensions
    except UNREADABLE:
        raise ChannelFileError("TLS_CRL_UNREADABLE", file=file, size=len(crl.tbs_certlist_bytes)) from None
    if signer is None:
        raise CertificateError("TLS_CRL_BAD_SIGNATURE", file=file, issuer=issuer, ca_file=ca_file)
    if not may_sign_lists(signer):
        raise CertificateError("TLS_CA_NO_CRLSIGN", file=ca_file, subject=subject_of(signer))
    if now < begin:
        raise CertificateError(
            "TLS_CRL_NOT_YET_VALID", file=file, issuer=issuer, date=day(begin), now=day(now)
        )
    if end is not None and now > end:
        raise CertificateError("TLS_CRL_EXPIRED", file=file, issuer=issuer, date=day(end))
