"""One PKCS#12 file: a private key, its certificate, and the authorities between that and the one that is trusted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates
from typing_extensions import override

from recovery.errors import ChannelFileError
from recovery.tls.certificates import UNREADABLE, is_authority, look_into, subject_of
from recovery.tls.checked_files import read_secret

_PEM = b"-----BEGIN"
_NOT_OURS = "Convert it: `openssl pkcs12 -export -in CERTIFICATE.pem -inkey KEY.pem -out FILE.p12`."
_AGAIN = "Copy it again from where it was made."


class Bundle(NamedTuple):
    """What is in a file. Its text shows no key."""

    file: str
    key: Any
    """A private key of `cryptography`."""
    certificate: x509.Certificate
    chain: tuple[x509.Certificate, ...]
    """Authorities that came with it."""

    @override
    def __repr__(self) -> str:
        return f"Bundle({self.file}, {subject_of(self.certificate)})"

    def key_and_chain_pem(self) -> bytes:
        """Key, certificate and chain as OpenSSL loads them, for memory only."""
        key: bytes = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        certificates = (self.certificate, *self.chain)
        return key + b"".join(
            certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates
        )


def read_bundle(path: Path, password: bytes | None, *, field: str, argument: str) -> Bundle:
    """Read a bundle.

    Args:
        path: of the file.
        password: as UTF-8; None: none was given.
        field: the key of config.json that names the file, for the error.
        argument: the argument that holds the password, for the error.

    Raises:
        ChannelFileError: the kind says what is wrong with it.
    """
    refused = partial(ChannelFileError, file=str(path), field=field)
    found = _opened(read_secret(path, field), password, refused, argument)
    if found.key is None:
        raise refused("P12_NO_KEY")
    others = [extra.certificate for extra in found.additional_certs]
    try:
        for certificate in (*others, *([found.cert.certificate] if found.cert is not None else [])):
            look_into(certificate)
    except UNREADABLE:
        reason = "a certificate in it cannot be read"
        raise refused("P12_FORMAT", reason=reason, next_step=_AGAIN) from None
    chain = tuple(certificate for certificate in others if is_authority(certificate))
    leaves = [certificate for certificate in others if not is_authority(certificate)]
    # OpenSSL looks for the certificate of the key, and gives none where none is.
    if found.cert is None:
        if not leaves:
            raise refused("P12_NO_CERT")
        raise refused("P12_KEY_MISMATCH", subject=subject_of(leaves[0]))
    if leaves:
        raise refused("P12_EXTRA_LEAF", subject=subject_of(leaves[0]))
    return Bundle(str(path), found.key, found.cert.certificate, chain)


def _opened(
    data: bytes, password: bytes | None, refused: Callable[..., ChannelFileError], argument: str
) -> PKCS12KeyAndCertificates:
    if not data:
        raise refused("P12_FORMAT", reason="it is empty", next_step=_AGAIN)
    if data.lstrip().startswith(_PEM):
        raise refused("P12_FORMAT", reason="it is PEM", next_step=_NOT_OURS)
    if _opens(data, None) is not None:
        raise refused("P12_UNENCRYPTED")
    found = _opens(data, password) if password else None
    if found is not None:
        return found
    if not _is_pkcs12(data):
        raise refused("P12_FORMAT", reason="it is cut, or something else", next_step=_AGAIN)
    if not password:
        raise refused("P12_PASSWORD_MISSING", argument=argument)
    raise refused("P12_PASSWORD_OR_CORRUPT", argument=argument)


def _opens(data: bytes, password: bytes | None) -> PKCS12KeyAndCertificates | None:
    try:
        return pkcs12.load_pkcs12(data, password)
    # What a damaged file makes of the parser is not documented; all of it means the same.
    except Exception:  # noqa: BLE001 - as above
        return None


def _is_pkcs12(data: bytes) -> bool:
    """Whether it begins as a DER sequence of the file's own length, with version 3: what no password changes."""
    if len(data) < 8 or data[0] != 0x30:  # noqa: PLR2004 - lengths and tags of DER
        return False
    if data[1] < 0x80:  # noqa: PLR2004 - a short length
        begin, length = 2, data[1]
    elif data[1] == 0x80:  # noqa: PLR2004 - an indefinite length
        return data[2:5] == b"\x02\x01\x03"
    else:
        count = data[1] & 0x7F
        begin = 2 + count
        length = int.from_bytes(data[2:begin], "big")
    return begin + length == len(data) and data[begin : begin + 3] == b"\x02\x01\x03"
