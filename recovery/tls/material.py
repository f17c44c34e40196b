"""Everything that one side of the channel needs, read and checked together: it is used whole or not at all."""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from typing_extensions import override

from recovery.errors import CertificateError, ChannelSettingError
from recovery.tls import authorities, bundle, certificates, revocation
from recovery.tls.bundle import Bundle
from recovery.tls.config_file import ChannelFiles
from recovery.tls.identity import Identity, identity_of
from recovery.tls.side import Side


class Material:
    """What one side presents and believes. Its text shows no secret."""

    def __init__(
        self,
        side: Side,
        files: ChannelFiles,
        own: Bundle,
        trusted: tuple[x509.Certificate, ...],
        lists: tuple[revocation.List, ...],
    ) -> None:
        """Keep what `load` has checked."""
        self.side, self.files, self.own, self.trusted, self.lists = side, files, own, trusted, lists
        self.identity: Identity | None = identity_of(own.certificate, file=own.file)

    @override
    def __repr__(self) -> str:
        return f"Material({self.side.value}, {self.own!r}, {len(self.trusted)} authorities, {len(self.lists)} lists)"

    def trusted_pem(self) -> str:
        """The authorities, as OpenSSL loads them."""
        pieces = [certificate.public_bytes(serialization.Encoding.PEM) for certificate in self.trusted]
        return b"".join(pieces).decode("ascii")

    def traces(self, certificate: x509.Certificate) -> bool:
        """Whether the way from a certificate to an authority is known here; what a peer sent of it is not kept."""
        return certificates.chain_of(certificate, self.own.chain, self.trusted) is not None

    def why_no_longer(
        self, certificate: x509.Certificate, now: datetime.datetime, *, traced: bool = True
    ) -> str:
        """Why a peer that was let in must go now; empty: it may stay.

        Args:
            certificate: the peer's own.
            now: this moment, with its time zone.
            traced: what `traces` said of it when it was let in.
        """
        if now > certificate.not_valid_after_utc:
            return f"TLS_CERT_EXPIRED: its certificate expired on {certificates.day(certificate.not_valid_after_utc)}"
        chain = certificates.chain_of(certificate, self.own.chain, self.trusted)
        found = revocation.revoked_in(self.lists, chain or (certificate,))
        if found is not None:
            day = certificates.day(found[1].revocation_date_utc)
            return f"TLS_CERT_REVOKED: its certificate (serial {certificates.serial_of(found[0]):x}) was revoked on {day}"
        if chain is None and traced:
            return "TLS_UNKNOWN_CA: its certificate is of no authority that is trusted any more"
        return ""


def load(files: ChannelFiles, side: Side, password: bytes | None, now: datetime.datetime) -> Material:
    """Read and check what one side needs.

    Args:
        files: what config.json says.
        side: the listening or the dialling one.
        password: of its PKCS#12 file.
        now: this moment, with its time zone.

    Raises:
        SecureChannelError: the kind says what is wrong with which file.
    """
    server = side is Side.SERVER
    field, path = (
        ("server_cert_path", files.server_cert) if server else ("client_cert_path", files.client_cert)
    )
    if path is None:
        raise ChannelSettingError(
            "CONFIG_TLS_INCOMPLETE",
            field=field,
            state="not set",
            rule=f"the {side.value}'s side needs its certificate and key",
            next_step=f"Name its PKCS#12 file in {files.file}.",
        )
    own = bundle.read_bundle(path, password, field=field, argument=f"{side.value}_password")
    trusted = authorities.read_authorities(files.ca_cert, now)
    certificates.check_leaf(own.certificate, file=own.file, field=field, server=server, now=now)
    chain = _chain(own, trusted, str(files.ca_cert), now)
    if server and not certificates.has_name(own.certificate):
        subject = certificates.subject_of(own.certificate)
        raise CertificateError("TLS_NO_SAN", file=own.file, subject=subject, wanted="MS_SCHED_HOST")
    lists: tuple[revocation.List, ...] = ()
    if files.crl is not None:
        lists = revocation.read_revocation_lists(
            files.crl, (*trusted, *own.chain), now, ca_file=str(files.ca_cert)
        )
        revocation.demand(lists, chain, trusted, str(files.crl))
        _check_own(own, chain, lists, str(files.crl))
    return Material(side, files, own, trusted, lists)


def _chain(
    own: Bundle, trusted: tuple[x509.Certificate, ...], ca_file: str, now: datetime.datetime
) -> tuple[x509.Certificate, ...]:
    chain = certificates.chain_of(own.certificate, own.chain, trusted)
    if chain is None:
        raise CertificateError(
            "TLS_UNKNOWN_CA",
            file=own.file,
            subject=certificates.subject_of(own.certificate),
            issuer=certificates.printable(own.certificate.issuer),
            issuer_key=certificates.wanted_key_id(own.certificate),
            ca_file=ca_file,
            ca_keys=", ".join(certificates.key_id(authority) for authority in trusted),
        )
    for certificate in chain[1:-1]:
        certificates.check_time(certificate, file=own.file, now=now)
        certificates.check_strength(certificate, file=own.file)
    return chain


def _check_own(
    own: Bundle, chain: tuple[x509.Certificate, ...], lists: tuple[revocation.List, ...], crl_file: str
) -> None:
    found = revocation.revoked_in(lists, chain)
    if found is not None:
        certificate, entry = found
        raise CertificateError(
            "TLS_CERT_REVOKED",
            file=own.file,
            subject=certificates.subject_of(certificate),
            serial=f"{certificates.serial_of(certificate):x}",
            date=certificates.day(entry.revocation_date_utc),
            crl_file=crl_file,
        )
