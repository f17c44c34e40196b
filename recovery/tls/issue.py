"""A small authority of one's own, for tests and small clusters: `recovery certs init|revoke`.

Its files: ca.crt and crl.pem, which every host needs; server.p12, client.p12 and nodes/ID.p12, each for one process; password,
which opens them all; config.json, which names them; ca.key and issued/, which never leave the directory.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import ipaddress
import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from recovery.core.message_fields import NODE_ID_PATTERN
from recovery.errors import UsageError
from recovery.tls import ciphers
from recovery.tls.certificates import UNREADABLE, common_name, look_into
from recovery.tls.checked_files import read_password, read_public, read_secret
from recovery.tls.host_names import is_host
from recovery.tls.identity import NODE, ROLE
from recovery.tls.revocation import number_of

CA, CA_KEY, LIST = "ca.crt", "ca.key", "crl.pem"
PASSWORD, CONFIG, ISSUED = "password", "config.json", "issued"
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
"""All that X.509 knows: each is granted or not."""
_CLOCKS_APART = datetime.timedelta(minutes=5)
"""Between the clock of this host and those of the others: nothing is valid later than they think it is now."""
_CA_DAYS = 3_650
_CRL_DAYS = 365
_PASSWORD_BYTES = 24
_SERVER, _CLIENT = "server", "client"
_BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


class Authority:
    """The authority that lies in a directory."""

    def __init__(self, place: Path, now: datetime.datetime) -> None:
        """Open it.

        Raises:
            ChannelFileError: a file of it is missing, or others may read what they must not.
            UsageError: it is not one that `create` has made.
        """
        self._place, self._now = place, now
        try:
            self.certificate = x509.load_pem_x509_certificate(read_public(place / CA, CA))
            key = serialization.load_pem_private_key(
                read_secret(place / CA_KEY, CA_KEY), read_password(place / PASSWORD, PASSWORD)
            )
        except (ValueError, TypeError):
            raise _no_authority(place) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise _no_authority(place)
        self._key = key
        self._key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())

    def issue(
        self,
        name: str,
        *,
        file: Path,
        days: int,
        uris: Sequence[str] = (),
        hosts: Sequence[str] = (),
        server: bool = False,
    ) -> x509.Certificate:
        """Make a key and its certificate, and write them as a PKCS#12 file.

        Args:
            name: the common name, for people.
            file: where to write it; one that is there is replaced.
            days: how long it is valid.
            uris: the identity that it gives its holder.
            hosts: addresses and names under which the holder can be reached.
            server: it may listen, too.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        alternative = [*(x509.UniformResourceIdentifier(uri) for uri in uris), *map(_general_name, hosts)]
        builder = (
            _builder(name, key, self._now, days)
            .issuer_name(self.certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage("digital_signature"), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(_BOTH if server else [ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
            )
            .add_extension(self._key_id, critical=False)
        )
        if alternative:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternative), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        encryption = serialization.BestAvailableEncryption(read_password(self._place / PASSWORD, PASSWORD))
        write(
            file,
            pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, None, encryption),
            0o600,
        )
        write(
            self._place / ISSUED / f"{certificate.serial_number:x}.crt",
            certificate.public_bytes(serialization.Encoding.PEM),
            0o644,
        )
        return certificate

    def publish(self, revoked: Sequence[x509.RevokedCertificate], number: int) -> None:
        """Sign a revocation list and put it in the place of the one before."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(self._now - _CLOCKS_APART)
            .next_update(self._now + datetime.timedelta(days=_CRL_DAYS))
            .add_extension(x509.CRLNumber(number), critical=False)
            .add_extension(self._key_id, critical=False)
        )
        for entry in revoked:
            builder = builder.add_revoked_certificate(entry)
        signed = builder.sign(self._key, hashes.SHA256())
        write(self._place / LIST, signed.public_bytes(serialization.Encoding.PEM), 0o644)

    def revoked(self) -> x509.CertificateRevocationList:
        """The list that it has published last.

        Raises:
            ChannelFileError: it is missing, or others may change it.
            UsageError: it is damaged.
        """
        path = self._place / LIST
        data = read_public(path, LIST)
        try:
            found = x509.load_pem_x509_crl(data)
            _ = number_of(found), *found
        except UNREADABLE:
            raise _damaged(
                path, "Take the one that the hosts have: it says which certificates are revoked."
            ) from None
        return found

    def issued(self) -> list[x509.Certificate]:
        """Every certificate that it has issued, by name and then by age.

        Raises:
            ChannelFileError: others may change one.
            UsageError: one is damaged.
        """
        found = [_certificate(path) for path in (self._place / ISSUED).glob("*.crt")]
        return sorted(
            found,
            key=lambda certificate: (common_name(certificate.subject), certificate.not_valid_before_utc),
        )

    def revoke(self, name: str) -> list[x509.Certificate]:
        """Take back every certificate of a name; gives those that were not taken back before.

        Raises:
            UsageError: it has issued none of that name.
        """
        with _alone(self._place):
            return self._revoke(name)

    def _revoke(self, name: str) -> list[x509.Certificate]:
        known = self.revoked()
        of_name = [certificate for certificate in self.issued() if common_name(certificate.subject) == name]
        if not of_name:
            names = ", ".join(
                dict.fromkeys(common_name(certificate.subject) for certificate in self.issued())
            )
            raise UsageError(
                field=ascii(name),
                reason=f"{self._place} has issued no certificate of that name",
                next_step=f"It knows {names or 'none'}.",
            )
        new = [
            certificate
            for certificate in of_name
            if known.get_revoked_certificate_by_serial_number(certificate.serial_number) is None
        ]
        entries = [
            x509.RevokedCertificateBuilder()
            .serial_number(certificate.serial_number)
            .revocation_date(self._now - _CLOCKS_APART)
            .build()
            for certificate in new
        ]
        self.publish([*known, *entries], (number_of(known) or 0) + 1)
        return new


def create(
    place: Path, *, nodes: Sequence[str], hosts: Sequence[str], days: int, now: datetime.datetime
) -> None:
    """Make an authority and everything that a job needs.

    Args:
        place: a directory that is empty, or not there yet.
        nodes: ids of workers that get a certificate of their own.
        hosts: addresses and names of the scheduler's host.
        days: how long certificates are valid.
        now: this moment, with its time zone.

    Raises:
        UsageError: something is in the directory, or a node id or a host is none.
    """
    _check_names(nodes, hosts)
    if place.exists() and any(place.iterdir()):
        raise UsageError(
            field=str(place),
            reason="is not empty, and nothing is overwritten",
            next_step="Name another directory, or move what is there.",
        )
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.chmod(0o700)
    password = secrets.token_urlsafe(_PASSWORD_BYTES).encode()
    write(place / PASSWORD, password + b"\n", 0o600)
    _write_authority(place, password, now)
    authority = Authority(place, now)
    authority.publish([], 1)
    authority.issue(
        _SERVER, file=place / "server.p12", days=days, uris=[f"{ROLE}scheduler"], hosts=hosts, server=True
    )
    authority.issue(_CLIENT, file=place / "client.p12", days=days)
    for node in dict.fromkeys(nodes):
        authority.issue(
            node, file=place / "nodes" / f"{node}.p12", days=days, uris=[f"{NODE}{node}", f"{ROLE}worker"]
        )
    absolute = place.absolute()
    named = {
        "server_cert_path": str(absolute / "server.p12"),
        "client_cert_path": str(absolute / "client.p12"),
        "ca_cert_path": str(absolute / CA),
        "crl_path": str(absolute / LIST),
        # MindSpore reads the same file, and takes no empty list.
        "cipher_list": ":".join(ciphers.ALLOWED),
        "cert_expire_warning_time_in_day": 90,
    }
    write(place / CONFIG, json.dumps(named, indent=2).encode() + b"\n", 0o644)


def _certificate(path: Path) -> x509.Certificate:
    data = read_public(path, ISSUED)
    try:
        found = x509.load_pem_x509_certificate(data)
        look_into(found)
    except UNREADABLE:
        raise _damaged(path, "Copy it back from a backup: without it its holder cannot be revoked.") from None
    return found


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Of two processes that revoke at once the second sees what the first has published."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write(path: Path, data: bytes, mode: int) -> None:
    """Put a file in its place, whole: a reader sees the one before or this one."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _check_names(nodes: Sequence[str], hosts: Sequence[str]) -> None:
    """Before anything is written: what is half made is in the way of the next attempt."""
    wrong = next((node for node in nodes if re.match(NODE_ID_PATTERN, node) is None), None)
    if wrong is not None:
        raise UsageError(
            field="--nodes",
            reason=f"{ascii(wrong)[:80]} is no node id",
            next_step="Use 1 to 64 of the characters A-Z a-z 0-9 . _ -, separated by commas.",
        )
    taken = next((node for node in nodes if node in {_SERVER, _CLIENT}), None)
    if taken is not None:
        raise UsageError(
            field="--nodes",
            reason=f"{taken} is the name of the certificate in {taken}.p12, and one is revoked by its name",
            next_step="Give the node another id.",
        )
    if not hosts:
        raise UsageError(
            field="--hosts",
            reason="names no host, so nobody would believe the scheduler's certificate",
            next_step="Name the address or the name that the workers dial (MS_SCHED_HOST).",
        )
    no_host = next((host for host in hosts if not is_host(host.removeprefix("*."))), None)
    if no_host is not None:
        raise UsageError(
            field="--hosts",
            reason=f"{ascii(no_host)[:80]} is neither an IP address nor a host name",
            next_step="Use names of letters, digits, - and ., and addresses without a mask, separated by commas.",
        )


def _write_authority(place: Path, password: bytes, now: datetime.datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = f"recovery authority {secrets.token_hex(4)}"
    certificate = (
        _builder(name, key, now, _CA_DAYS)
        .issuer_name(_name(name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    )
    write(place / CA_KEY, secret, 0o600)
    write(place / CA, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _builder(
    name: str, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_APART)
        .not_valid_after(now + datetime.timedelta(days=days))
        .public_key(key.public_key())
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*granted: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in granted for name in _USAGES})


def _no_authority(place: Path) -> UsageError:
    return UsageError(
        field=str(place),
        reason="holds no authority of ours",
        next_step="Make one: recovery certs init DIR.",
    )


def _damaged(path: Path, next_step: str) -> UsageError:
    return UsageError(field=str(path), reason="is damaged", next_step=next_step)
