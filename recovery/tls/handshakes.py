"""Why a handshake failed: what OpenSSL says, as a code and a sentence with the next step.

With TLS 1.3 a client is through before the server has judged its certificate: what the server says comes with the first read,
as an alert, and is looked up in the same table.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from typing import NamedTuple

from recovery.tls.side import Side

_BOTH = (Side.SERVER, Side.CLIENT)
_SHOWN_CHARACTERS = 120
_NO_TLS = "WRONG_VERSION_NUMBER|UNKNOWN_PROTOCOL|RECORD_LAYER_FAILURE|PACKET_LENGTH_TOO_LONG"


class _Row(NamedTuple):
    """What OpenSSL names in one of two ways."""

    verify_codes: tuple[int, ...]
    """X509_V_ERR_*: why OpenSSL refused the other side's certificate here."""
    reasons: str
    """A pattern of SSL_R_*: why the handshake ended, or what the other side's alert says."""
    sides: tuple[Side, ...]
    """The sides that say it."""
    code: str
    sentence: str


_ROWS = (
    _Row((), "PEER_DID_NOT_RETURN_A_CERTIFICATE", (Side.SERVER,), "TLS_CLIENT_CERT_MISSING",
         "it presented no certificate; set client_cert_path there"),
    _Row((), "ALERT_CERTIFICATE_REQUIRED|ALERT_HANDSHAKE_FAILURE", (Side.CLIENT,), "TLS_CLIENT_CERT_MISSING",
         "the scheduler found no certificate or no cipher that it takes; compare client_cert_path and cipher_list of both sides"),
    _Row((), f"HTTP_REQUEST|HTTPS_PROXY_REQUEST|{_NO_TLS}", (Side.SERVER,), "TLS_PEER_PLAINTEXT",
         "it spoke no TLS; is enable_ssl off there?"),
    _Row((), _NO_TLS, (Side.CLIENT,), "TLS_SERVER_PLAINTEXT",
         "what listens there speaks no TLS; is enable_ssl off in the scheduler?"),
    _Row((23,), "", _BOTH, "TLS_CERT_REVOKED",
         "the other side's certificate is on the list of crl_path"),
    _Row((), "ALERT_CERTIFICATE_REVOKED", _BOTH, "TLS_CERT_REVOKED",
         "the other side says that our certificate is revoked; ask for a new one"),
    _Row((10,), "", _BOTH, "TLS_CERT_EXPIRED",
         "the other side's certificate, or its authority's, has expired; or a clock is wrong"),
    _Row((), "ALERT_CERTIFICATE_EXPIRED", _BOTH, "TLS_CERT_EXPIRED",
         "the other side says that our certificate has expired; renew it, or look at the clocks"),
    _Row((9, 11), "", _BOTH, "TLS_CERT_NOT_YET_VALID",
         "what the other side presents is not valid yet; look at the clocks"),
    _Row((3,), "", _BOTH, "TLS_CRL_MISSING_ISSUER",
         "crl_path holds no list of the authority of the other side's certificate"),
    _Row((12,), "", _BOTH, "TLS_CRL_EXPIRED",
         "the list of crl_path is overdue here; fetch the newest one"),
    _Row((26,), "ALERT_UNSUPPORTED_CERTIFICATE", _BOTH, "TLS_EKU",
         "a certificate is not made for its side: serverAuth listens, clientAuth dials"),
    _Row((62, 64), "", (Side.CLIENT,), "TLS_HOST_MISMATCH",
         "the scheduler's certificate does not name the address that was dialled; add it as IP or DNS name, or set expected_hostname"),
    _Row((7, 8, 18, 19, 20, 21), "ALERT_UNKNOWN_CA", _BOTH, "TLS_UNKNOWN_CA",
         "a certificate was issued by nobody whom the other side trusts; compare ca_cert_path of both sides"),
    _Row((), "UNSUPPORTED_PROTOCOL|ALERT_PROTOCOL_VERSION|VERSION_TOO_LOW", _BOTH, "TLS_VERSION",
         "there is no version in common; this side speaks TLS 1.2 and 1.3"),
    _Row((), "NO_SHARED_CIPHER", _BOTH, "TLS_CIPHER",
         "there is no cipher in common; compare cipher_list of both sides and the kind of the key"),
    _Row((66, 67), "KEY_TOO_SMALL", _BOTH, "TLS_KEY_WEAK",
         "a key is too short; RSA from 2,048 bits and EC from P-256 on are taken"),
    _Row((68,), "MD_TOO_WEAK", _BOTH, "TLS_SIG_WEAK",
         "a certificate is signed with an old digest; have it signed again with SHA-256"),
)  # fmt: skip
_REFUSED = _Row(
    (),
    "CERTIFICATE",
    _BOTH,
    "TLS_CERTIFICATE",
    "a certificate was refused; `recovery doctor` on both sides says more",
)
_TIMEOUT = "TLS_HANDSHAKE_TIMEOUT: it did not finish the handshake in time"
_CUT = "TLS_HANDSHAKE_CUT: it closed the connection in the middle of the handshake"


def why(error: BaseException, side: Side) -> str:
    """Name a failed handshake: `CODE: sentence (what OpenSSL says)`; empty: TLS is not what failed.

    Args:
        error: what was raised, or what wraps it.
        side: this side.
    """
    found = next(_of_openssl(error), None)
    if found is None:
        return ""
    verify_code, said = found
    shown = said.encode("unicode_escape").decode()[:_SHOWN_CHARACTERS]
    for row in (*_ROWS, _REFUSED):
        if side in row.sides and _is_of(row, verify_code, said):
            return f"{row.code}: {row.sentence} ({shown})"
    return f"TLS_HANDSHAKE: the handshake failed ({shown})"


def why_not_finished(error: BaseException) -> str:
    """Name a handshake that ended on the listening side, whatever ended it."""
    said = why(error, Side.SERVER)
    if said:
        return said
    late = isinstance(error, TimeoutError) or "taking longer" in str(error)
    return _TIMEOUT if late else _CUT


def _is_of(row: _Row, verify_code: int, said: str) -> bool:
    if verify_code:
        return verify_code in row.verify_codes or row is _REFUSED
    return bool(row.reasons) and re.search(row.reasons, said, re.IGNORECASE) is not None


def _of_openssl(error: BaseException | None) -> Iterator[tuple[int, str]]:
    """Why it refused a certificate, or 0, and what it says; of an error or of what that wraps."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        said = getattr(error, "verify_message", "") or getattr(error, "reason", "")
        if said and isinstance(error, ssl.SSLError):
            yield getattr(error, "verify_code", 0), str(said)
        error = getattr(error, "os_error", None) or error.__cause__ or error.__context__
