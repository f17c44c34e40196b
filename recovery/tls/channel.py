"""One side's material and context while the process runs: renewed when its files change, and looked at for what will expire.

New files are checked whole before they are used. Where they cannot be used, the material of before stays and a note says why:
a file that is being replaced must end no job.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from typing_extensions import override

from recovery import clock
from recovery.errors import SecureChannelError
from recovery.tls import certificates, config_file, material, revocation
from recovery.tls.checked_files import read_password
from recovery.tls.config_file import ChannelFiles
from recovery.tls.contexts import context_of
from recovery.tls.material import Material
from recovery.tls.side import Side

_DAY = datetime.timedelta(days=1)


class Note(NamedTuple):
    """What a person should know. The caller logs it."""

    event: str
    text: str
    warning: bool = True

    @property
    def level(self) -> int:
        """Of the line in the log."""
        return logging.WARNING if self.warning else logging.INFO


class Channel:
    """Made once for each side of a process. `context` may be another one after each `reload`."""

    def __init__(
        self, config: Path, side: Side, password: bytes | None, password_file: Path | None = None
    ) -> None:
        """Read and check everything.

        Args:
            config: config.json; relative paths, in it as well, mean the working directory of now.
            side: the listening or the dialling one.
            password: of its PKCS#12 file; kept, since the file may be replaced.
            password_file: where that password comes from, and one of new files may; None: it stays.

        Raises:
            SecureChannelError: the kind says what is wrong with which file.
        """
        # Files are read again after a script may have gone elsewhere.
        self._directory = Path.cwd()
        self._config, self._side, self._password = self._directory / config, side, password
        self._password_file = password_file
        self._said_at: dict[str, datetime.datetime] = {}
        self._refused: tuple[bytes, str] | None = None
        """Which files could not be used at the last look, and what was wrong with them."""
        self._seen = self._digest(self._named())
        self.material, self.context = self._loaded(clock.utc_now())

    @override
    def __repr__(self) -> str:
        return f"Channel({self._side.value}, {self._config})"

    def reload(self, now: datetime.datetime) -> list[Note]:
        """Take new files where there are any. Reads files: not for an event loop.

        Returns:
            What has changed or could not be used, and once a day what expires soon.
        """
        notes: list[Note] = []
        digest = self._digest(self.material.files)
        if digest != self._seen:
            notes += self._renew(digest, now)
        return notes + self._expiring(now)

    def _renew(self, digest: bytes, now: datetime.datetime) -> list[Note]:
        before = self.material
        try:
            self.material, self.context = self._loaded(now)
        except (SecureChannelError, OSError) as error:
            # Tried again at the next look, without a word: a list of a clock that is ahead is good a moment later.
            what = error.code if isinstance(error, SecureChannelError) else type(error).__name__
            said, self._refused = self._refused, (digest, what)
            if said == self._refused:
                return []
            return [Note("tls_files_refused", f"{error} What was loaded before stays in use.")]
        self._seen, self._refused = digest, None
        self._said_at.clear()
        if self.material.files != before.files:
            # It names other files now, whose content was not part of the digest: look again.
            self._seen = b""
        notes = [Note("tls_files_renewed", f"{self.material!r} from now on", warning=False)]
        notes += [Note("tls_setting_ignored", text) for text in self.material.files.warnings]
        return notes + _not_newer(before, self.material)

    def _loaded(self, now: datetime.datetime) -> tuple[Material, ssl.SSLContext]:
        if self._password_file is not None:
            self._password = read_password(
                self._password_file, f"MS_{self._side.value.upper()}_PASSWORD_FILE"
            )
        found = material.load(self._named(), self._side, self._password, now)
        return found, context_of(found)

    def _named(self) -> ChannelFiles:
        return config_file.read_config_file(self._config, self._directory)

    def _expiring(self, now: datetime.datetime) -> list[Note]:
        found = self.material
        files = found.files
        held = [
            (found.own.certificate, found.own.file),
            *((authority, str(files.ca_cert)) for authority in found.trusted),
        ]
        ends = [
            (f"{certificates.subject_of(certificate)} in {file}", certificate.not_valid_after_utc)
            for certificate, file in held
        ]
        notes = [
            note
            for what, end in ends
            if end - now <= files.expire_warning_days * _DAY
            and (note := self._once_a_day(what, end, now)) is not None
        ]
        for crl in found.lists:
            until, since = crl.next_update_utc, crl.last_update_utc
            # A list may be renewed every day: what counts is the last tenth of its time.
            if until is not None and now > until - (until - since) / 10:
                name = f"the list of {certificates.printable(crl.issuer)} in {files.crl}"
                note = self._once_a_day(name, until, now)
                notes += [note] if note is not None else []
        return notes

    def _once_a_day(self, what: str, end: datetime.datetime, now: datetime.datetime) -> Note | None:
        said_at = self._said_at.get(what)
        if said_at is not None and now - said_at < _DAY:
            return None
        self._said_at[what] = now
        if now > end:
            text = f"{what} expired on {certificates.day(end)}: no new connection is made with it. Put a new one in its place."
            return Note("tls_expired", text)
        text = f"{what} expires in {(end - now).days} days, on {certificates.day(end)}. Put a new one in its place; no restart is needed."
        return Note("tls_expires", text)

    def _digest(self, files: ChannelFiles) -> bytes:
        """Of all files; where one cannot be read, of that."""
        own = files.server_cert if self._side is Side.SERVER else files.client_cert
        whole = hashlib.sha256()
        for path in (self._config, own, files.ca_cert, files.crl, self._password_file):
            whole.update(_content(path))
        return whole.digest()


def peer_of(stream: ssl.SSLObject | ssl.SSLSocket | None) -> x509.Certificate | None:
    """The certificate of the other side of a connection; None: the connection has no TLS."""
    data = stream.getpeercert(binary_form=True) if stream is not None else None
    return x509.load_der_x509_certificate(data) if data else None


def _content(path: Path | None) -> bytes:
    if path is None:
        return b"none"
    try:
        facts = path.stat()
        # A file of 2 GB by mistake is refused by the code that loads it; here its size and time are enough.
        head = (
            path.read_bytes()
            if facts.st_size <= 1 << 20
            else str((facts.st_size, facts.st_mtime_ns)).encode()
        )
    except OSError as error:
        return str(error.errno).encode()
    return hashlib.sha256(head).digest() + str(facts.st_mode).encode()


def _not_newer(before: Material, after: Material) -> list[Note]:
    notes = []
    for new in after.lists:
        number = revocation.number_of(new)
        for old in before.lists:
            old_number = revocation.number_of(old)
            if old.issuer != new.issuer or old == new or number is None or old_number is None:
                continue
            if number <= old_number:
                text = f"TLS_CRL_NOT_NEWER: the list of {certificates.printable(new.issuer)} has number {number}, the one before had {old_number}"
                notes.append(Note("tls_list_not_newer", text))
    return notes
