"""Certificates and revocation lists that can be read and cannot be used. Named by subject, never by key or password."""

from __future__ import annotations

from recovery.errors.tls import SecureChannelError


class CertificateError(SecureChannelError):
    """A certificate or a revocation list does not hold what TLS needs."""

    exit_code = 27


class CertificateExpiredError(CertificateError):
    """A certificate is no longer valid."""

    code = "TLS_CERT_EXPIRED"
    template = "{file}: {subject} expired on {date}, {days} days ago. Put a new one in its place; no process need be restarted for it."


class CertificateNotYetValidError(CertificateError):
    """A certificate is not valid yet: a wrong clock, usually."""

    code = "TLS_CERT_NOT_YET_VALID"
    template = "{file}: {subject} is valid from {date}, and here it is {now}. Check the clocks of this host and of the authority."


class AuthorityExpiredError(CertificateError):
    """The authority's own certificate is no longer valid."""

    code = "TLS_CA_EXPIRED"
    template = "{file}: the authority {subject} expired on {date}, {days} days ago. Every certificate needs a new authority."


class CertificateRevokedError(CertificateError):
    """A certificate of ours is on the revocation list."""

    code = "TLS_CERT_REVOKED"
    template = (
        "{file}: {subject}, serial {serial}, was revoked on {date} by {crl_file}. Ask for a new certificate."
    )


class CrlMissingIssuerError(CertificateError):
    """Revocation is checked, and the list of one authority is missing."""

    code = "TLS_CRL_MISSING_ISSUER"
    template = "{file} (crl_path) holds no list of {issuer}. Add it: every authority of the chain needs one."


class CrlExpiredError(CertificateError):
    """The next revocation list is overdue."""

    code = "TLS_CRL_EXPIRED"
    template = "{file} (crl_path): the list of {issuer} was to be renewed by {date}. Fetch the newest one; no process need be restarted for it."


class CrlNotYetValidError(CertificateError):
    """A revocation list comes from the future."""

    code = "TLS_CRL_NOT_YET_VALID"
    template = "{file} (crl_path): the list of {issuer} is valid from {date}, and here it is {now}. Check the clocks."


class CrlSignatureError(CertificateError):
    """A revocation list is not signed by the authority it names."""

    code = "TLS_CRL_BAD_SIGNATURE"
    template = (
        "{file} (crl_path): the list is not signed by {issuer} of {ca_file}. Name the list of that authority."
    )


class CrlNoSignRightError(CertificateError):
    """The authority may not sign revocation lists."""

    code = "TLS_CA_NO_CRLSIGN"
    template = "{file} (ca_cert_path): {subject} may not sign revocation lists (key usage cRLSign). Make the authority again with it, or leave crl_path empty."


class KeyUsageError(CertificateError):
    """A certificate is not made for the side that it is used on."""

    code = "TLS_EKU"
    template = "{file} ({field}): {subject} lacks the extended key usage {usage}. Make the certificate again with it."


class NoSanError(CertificateError):
    """A server's certificate has no subject alternative name; its common name does not count."""

    code = "TLS_NO_SAN"
    template = "{file}: {subject} has no subject alternative name, and its common name is not used. Make it again with an IP or DNS name of {wanted}."


class UnknownAuthorityError(CertificateError):
    """A certificate was issued by nobody who is trusted here."""

    code = "TLS_UNKNOWN_CA"
    template = "{file}: {subject} was issued by {issuer} (key id {issuer_key}), which is not in {ca_file} (key ids {ca_keys}). Name the authority that signed it."


class WeakKeyError(CertificateError):
    """A key is too short to protect anything."""

    code = "TLS_KEY_WEAK"
    template = "{file}: {subject} has a key of {found}, and {wanted} is the least. Make the certificate again with a longer key."


class WeakSignatureError(CertificateError):
    """A certificate is signed with a broken digest."""

    code = "TLS_SIG_WEAK"
    template = "{file}: {subject} is signed with {algorithm}. Make it again with SHA-256 or better."


class LeafIsAuthorityError(CertificateError):
    """A process would present the certificate of an authority."""

    code = "TLS_LEAF_IS_CA"
    template = "{file}: {subject} is an authority, and a process must not hold one. Use a certificate that it has signed."


class IdentityError(CertificateError):
    """A certificate's own identity cannot be read."""

    code = "TLS_IDENTITY"
    template = "{file}: {subject} names {value!r}: {rule}. Make the certificate again with `recovery certs init DIR --nodes ID`."
