"""What an authority of ours has issued, for people: `recovery certs show`."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
from cryptography import x509

from recovery.errors import CertificateError
from recovery.tls.certificates import common_name, printable
from recovery.tls.identity import identity_of
from recovery.tls.issue import Authority


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One certificate."""

    name: str
    subject: str
    role: str
    node_id: str
    serial: str
    valid_from: str
    valid_until: str
    days_left: int
    """Rounded down; negative: expired."""
    state: str
    """`valid`, `expired` or `revoked`."""


def list_of(place: Path, now: datetime.datetime) -> list[Listed]:
    """The authority itself, then what it has issued, by name.

    Raises:
        UsageError, ChannelFileError: there is no authority of ours, or a file of it cannot be read.
    """
    authority = Authority(place, now)
    known = authority.revoked()
    return [_listed(certificate, known, now) for certificate in (authority.certificate, *authority.issued())]


def _listed(
    certificate: x509.Certificate, known: x509.CertificateRevocationList, now: datetime.datetime
) -> Listed:
    end = certificate.not_valid_after_utc
    revoked = known.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None
    try:
        identity = identity_of(certificate)
    except CertificateError:
        identity = None
    return Listed(
        name=common_name(certificate.subject),
        subject=printable(certificate.subject),
        role=identity.role if identity else "",
        node_id=identity.node_id if identity else "",
        serial=f"{certificate.serial_number:x}",
        valid_from=certificate.not_valid_before_utc.isoformat(),
        valid_until=end.isoformat(),
        days_left=(end - now).days,
        state="revoked" if revoked else "expired" if end < now else "valid",
    )
