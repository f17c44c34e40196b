"""`ca_cert_path`: the authorities whose certificates are let in. Nobody else's, never the system's."""

from __future__ import annotations

import datetime
import warnings
from pathlib import Path

from cryptography import x509
from cryptography.utils import CryptographyDeprecationWarning

from recovery.errors import ChannelFileError
from recovery.tls.certificates import (
    UNREADABLE,
    check_strength,
    check_time,
    is_authority,
    look_into,
    subject_of,
)
from recovery.tls.checked_files import read_public


def read_authorities(path: Path, now: datetime.datetime) -> tuple[x509.Certificate, ...]:
    """Read the authorities.

    Raises:
        ChannelFileError: the file cannot be read, or holds something else.
        CertificateError: an authority is not valid now, or too weak.
    """
    file = str(path)
    data = read_public(path, "ca_cert_path")
    if not data.strip():
        raise ChannelFileError("CA_FILE", file=file, reason="is empty")
    if b"PRIVATE KEY-----" in data:
        raise ChannelFileError("CA_HAS_PRIVATE_KEY", file=file)
    try:
        with warnings.catch_warnings():
            # Private authorities with a serial number of 0 are about; a release that refuses them raises ValueError.
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            found = tuple(x509.load_pem_x509_certificates(data))
        for certificate in found:
            look_into(certificate)
    except UNREADABLE:
        raise ChannelFileError(
            "CA_FILE", file=file, reason="holds no PEM certificate that can be read"
        ) from None
    for certificate in found:
        _check(certificate, file, now)
    return found


def _check(certificate: x509.Certificate, file: str, now: datetime.datetime) -> None:
    if not is_authority(certificate):
        raise ChannelFileError("CA_NOT_CA", file=file, subject=subject_of(certificate))
    check_time(certificate, file=file, now=now, expired="TLS_CA_EXPIRED")
    check_strength(certificate, file=file)
