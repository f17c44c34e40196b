"""What a certificate says that its holder is: `ft-node:ID` and `ft-role:ROLE` among its subject alternative names."""

from __future__ import annotations

import re
from typing import NamedTuple

from cryptography import x509

from recovery.core.ids import NodeId
from recovery.core.message_fields import NODE_ID_PATTERN
from recovery.errors import CertificateError
from recovery.tls.certificates import UNREADABLE, extension_of, subject_of

NODE, ROLE = "ft-node:", "ft-role:"
ROLES = ("scheduler", "worker", "pserver", "launcher", "viewer")


class Identity(NamedTuple):
    """What a certificate restricts its holder to. Empty: it does not say, and so does not restrict."""

    role: str
    """One of ROLES."""
    node_id: NodeId


def identity_of(certificate: x509.Certificate, *, file: str = "the peer's certificate") -> Identity | None:
    """Read the identity of a certificate; None: it names none.

    Args:
        certificate: verified before, or one's own.
        file: where it comes from, for the error.

    Raises:
        CertificateError: it names two of a kind, a role that does not exist, no valid node id, or somebody whom we cannot read.
    """
    names = _uris(certificate, file)
    node = _only(NODE, names, certificate, file)
    role = _only(ROLE, names, certificate, file)
    if node is None and role is None:
        return None
    if node is not None and re.match(NODE_ID_PATTERN, node) is None:
        raise _refused(certificate, file, NODE + node, "a node id is 1 to 64 of A-Z a-z 0-9 . _ -")
    if role is not None and role not in ROLES:
        raise _refused(certificate, file, ROLE + role, f"a role is one of {', '.join(ROLES)}")
    return Identity(role or "", NodeId(node or ""))


def _uris(certificate: x509.Certificate, file: str) -> list[str]:
    """The URIs among the subject alternative names. What OpenSSL lets in and we cannot read may name somebody all the same."""
    try:
        names = extension_of(certificate, x509.SubjectAlternativeName)
    except UNREADABLE as error:
        raise _refused(certificate, file, "?", f"its extensions cannot be read ({error})") from error
    return names.get_values_for_type(x509.UniformResourceIdentifier) if names is not None else []


def _only(prefix: str, names: list[str], certificate: x509.Certificate, file: str) -> str | None:
    found = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    if len(found) > 1:
        raise _refused(certificate, file, ", ".join(found), f"it may name one {prefix.rstrip(':')} only")
    return found[0] if found else None


def _refused(certificate: x509.Certificate, file: str, value: str, rule: str) -> CertificateError:
    return CertificateError(
        "TLS_IDENTITY", file=file, subject=subject_of(certificate), value=value, rule=rule
    )
