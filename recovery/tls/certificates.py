"""Looks at one certificate: is it of use now, for this side, and signed by whom."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from recovery.errors import CertificateError

RSA_BITS_MIN = 2_048
EC_BITS_MIN = 256
_WEAK_DIGESTS = ("md5", "sha1")
_DEPTH_MAX = 8
_Kind = TypeVar("_Kind", bound=x509.ExtensionType)
_SERVER, _CLIENT = "serverAuth", "clientAuth"
_USAGES = {_SERVER: ExtendedKeyUsageOID.SERVER_AUTH, _CLIENT: ExtendedKeyUsageOID.CLIENT_AUTH}


UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What a certificate or a list raises that is none, some of it only when it is looked into. They have no class in common."""


def subject_of(certificate: x509.Certificate) -> str:
    """The subject as people write it, safe to log: control characters are escaped."""
    return printable(certificate.subject)


def printable(name: x509.Name) -> str:
    """A distinguished name, safe to log."""
    return name.rfc4514_string().encode("unicode_escape").decode()[:200]


def common_name(name: x509.Name) -> str:
    """The common name, or the whole name where there is none."""
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else printable(name)


def day(moment: datetime.datetime) -> str:
    """A date as the errors write it, UTC."""
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def look_into(certificate: x509.Certificate) -> None:
    """Read what is read of it later.

    Raises:
        Exception: one of UNREADABLE: it is no certificate.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _ = certificate.issuer, certificate.subject, certificate.serial_number, certificate.extensions
        _ = certificate.public_key(), certificate.signature_hash_algorithm
        _ = certificate.not_valid_before_utc, certificate.not_valid_after_utc


def serial_of(certificate: x509.Certificate) -> int:
    """Its serial number, also one that is not positive: `look_into` has let that pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return certificate.serial_number


def check_leaf(
    certificate: x509.Certificate, *, file: str, field: str, server: bool, now: datetime.datetime
) -> None:
    """Check a process's own certificate.

    Args:
        certificate: of the bundle.
        file: where it lies, for the error.
        field: the key that names the file.
        server: it is for the listening side.
        now: this moment, with its time zone.

    Raises:
        CertificateError: the kind says what is wrong with it.
    """
    check_time(certificate, file=file, now=now)
    check_strength(certificate, file=file)
    refused = partial(CertificateError, file=file, subject=subject_of(certificate))
    if is_authority(certificate):
        raise refused("TLS_LEAF_IS_CA")
    usage = _SERVER if server else _CLIENT
    if _USAGES[usage] not in (extension_of(certificate, x509.ExtendedKeyUsage) or ()):
        raise refused("TLS_EKU", field=field, usage=usage)


def check_time(
    certificate: x509.Certificate, *, file: str, now: datetime.datetime, expired: str = "TLS_CERT_EXPIRED"
) -> None:
    """Refuse one that is not valid now; `expired` is the code of one that was."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    refused = partial(CertificateError, file=file, subject=subject_of(certificate))
    if now < begin:
        raise refused("TLS_CERT_NOT_YET_VALID", date=day(begin), now=day(now))
    if now > end:
        raise refused(expired, date=day(end), days=(now - end).days)


def check_strength(certificate: x509.Certificate, *, file: str) -> None:
    """Refuse short keys and broken digests."""
    key = certificate.public_key()
    refused = partial(CertificateError, file=file, subject=subject_of(certificate))
    found = ""
    if isinstance(key, rsa.RSAPublicKey):
        found = f"{key.key_size} bits (RSA)" if key.key_size < RSA_BITS_MIN else ""
    elif isinstance(key, ec.EllipticCurvePublicKey):
        found = f"{key.curve.key_size} bits (EC)" if key.curve.key_size < EC_BITS_MIN else ""
    elif not isinstance(key, (ed25519.Ed25519PublicKey, ed448.Ed448PublicKey)):
        found = f"another kind ({type(key).__name__})"
    if found:
        wanted = f"RSA of {RSA_BITS_MIN} bits or EC of {EC_BITS_MIN}"
        raise refused("TLS_KEY_WEAK", found=found, wanted=wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        digest = certificate.signature_hash_algorithm
    if digest is not None and digest.name in _WEAK_DIGESTS:
        raise refused("TLS_SIG_WEAK", algorithm=digest.name)


def extension_of(
    holder: x509.Certificate | x509.CertificateRevocationList, kind: type[_Kind]
) -> _Kind | None:
    """An extension of a certificate or a list; None: it has none of that kind.

    Raises:
        Exception: one of UNREADABLE: nobody has looked into it, and its extensions cannot be read.
    """
    try:
        return holder.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def is_authority(certificate: x509.Certificate) -> bool:
    """Whether its basic constraints say so."""
    found = extension_of(certificate, x509.BasicConstraints)
    return found is not None and found.ca


def may_sign_lists(certificate: x509.Certificate) -> bool:
    """Whether its key usage allows to sign revocation lists; without the extension nothing is restricted."""
    found = extension_of(certificate, x509.KeyUsage)
    return found is None or found.crl_sign


def has_name(certificate: x509.Certificate) -> bool:
    """Whether a client could check an address or name of it."""
    names = extension_of(certificate, x509.SubjectAlternativeName)
    return names is not None and any(isinstance(name, (x509.DNSName, x509.IPAddress)) for name in names)


def key_id(certificate: x509.Certificate) -> str:
    """The first bytes of the key's identifier: tells two authorities of one name apart."""
    return x509.SubjectKeyIdentifier.from_public_key(certificate.public_key()).digest.hex()[:16]


def wanted_key_id(certificate: x509.Certificate) -> str:
    """The first bytes of the identifier of the key that has signed it, or `unknown`."""
    found = extension_of(certificate, x509.AuthorityKeyIdentifier)
    return found.key_identifier.hex()[:16] if found is not None and found.key_identifier else "unknown"


def signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether one has signed the other."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, *UNREADABLE):
        return False
    return True


def chain_of(
    leaf: x509.Certificate, between: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]
) -> tuple[x509.Certificate, ...] | None:
    """The certificates from `leaf` up to one that is trusted, both included; None: there is no way to one.

    Args:
        leaf: where it begins.
        between: those that came with it.
        authorities: those that are trusted.
    """
    chain = [leaf]
    while len(chain) <= _DEPTH_MAX:
        last = chain[-1]
        trusted = next((authority for authority in authorities if signed_by(last, authority)), None)
        if trusted is not None:
            return (*chain, trusted)
        above = next(
            (
                certificate
                for certificate in between
                if certificate not in chain and signed_by(last, certificate)
            ),
            None,
        )
        if above is None:
            return None
        chain.append(above)
    return None
