"""What is wrong with the material of the secure channel (TLS), found before a connection is made.

Rows of a class share its exit code: what a launcher does about them is the same. Each has a code of its own.
Certificates are named by subject. No sentence holds a password or a key.
"""

from __future__ import annotations

from recovery.errors.base import Cause, RecoveryError, Row


class SecureChannelError(RecoveryError):
    """TLS is asked for and cannot be had. Nothing goes on in plain text instead."""


class ChannelSettingError(SecureChannelError):
    """A key of config.json, or an argument that belongs to it, is wrong."""

    rows = (
        Row("CONFIG_JSON", 25, Cause.PERMANENT,
            "{file}: {reason}. Write one JSON object with the keys server_cert_path, client_cert_path, ca_cert_path, "
            "crl_path, cipher_list, cert_expire_warning_time_in_day and expected_hostname.",
            "config.json cannot be read as one JSON object of known keys."),
        Row("CONFIG_RANGE", 25, Cause.PERMANENT,
            "{file}: {field}={value}: {rule}. Set it, for example to {example}.",
            "A number of config.json is outside its range, or none."),
        Row("CONFIG_TLS_INCOMPLETE", 25, Cause.PERMANENT,
            "{field} is {state}, and enable_ssl is on: {rule}. {next_step}",
            "TLS is on and part of its material is not named."),
        Row("CONFIG_CIPHER", 25, Cause.PERMANENT,
            "{file}: cipher_list: {reason}. Use some of {allowed}, with : between them.",
            "An entry of cipher_list is not one that can be used, or none is left."),
        Row("CONFIG_CIPHER_WEAK", 25, Cause.PERMANENT,
            "{file}: cipher_list: entry {position} {entry!r} is no protection. Take it out; use some of {allowed}.",
            "An entry of cipher_list would switch encryption or authentication off."),
        Row("CONFIG_HOST_EMPTY", 25, Cause.PERMANENT,
            "{field} is empty: the scheduler's certificate is checked for it. Set {field} to the scheduler's address or name.",
            "There is no name that the scheduler's certificate could be checked for."),
    )  # fmt: skip


class ChannelFileError(SecureChannelError):
    """A file of the secure channel, which holds secrets or what is trusted, cannot be used as it lies there."""

    rows = (
        Row("FILE_MISSING", 26, Cause.PERMANENT,
            "{file} ({field}) cannot be read: {reason}. Put the file there, or name the right one.",
            "A named file is not there, or cannot be read."),
        Row("FILE_NOT_REGULAR", 26, Cause.PERMANENT,
            "{file} ({field}) is a {kind}, and must be a regular file. Name the file itself.",
            "A directory, a pipe or a device stands where a file is named."),
        Row("FILE_SYMLINK", 26, Cause.PERMANENT,
            "{file} ({field}) is a symbolic link, and a secret is read from no link. Name the file that it leads to.",
            "A symbolic link stands where a secret is named."),
        Row("FILE_PERM", 26, Cause.PERMANENT,
            "{file} ({field}) has mode {mode}: {rule}. Run chmod {wanted} {file}.",
            "Others than the owner may read or change a file, or the directory it lies in."),
        Row("FILE_OWNER", 26, Cause.PERMANENT,
            "{file} ({field}) belongs to user {owner}, and this process runs as {user}. Run as that user, or copy the file.",
            "A file belongs to another user."),
        Row("FILE_TOO_BIG", 26, Cause.PERMANENT,
            "{file} ({field}) has {size} bytes, at most {most} are read. Name the right file.",
            "A file is longer than any of its kind."),
        Row("PASSWORD_FILE", 26, Cause.PERMANENT,
            "{file} ({field}) {reason}. Write the password into it as one line.",
            "A password file holds no password."),
        Row("P12_FORMAT", 26, Cause.PERMANENT,
            "{file} ({field}) is no PKCS#12 file: {reason}. {next_step}",
            "A file is no PKCS#12 bundle."),
        Row("P12_PASSWORD_MISSING", 26, Cause.PERMANENT,
            "{file} ({field}) has no password: {argument} is not given. Give it to init or set_ps_context, or name a 0600 file that holds it.",
            "A PKCS#12 file is named without its password."),
        Row("P12_PASSWORD_OR_CORRUPT", 26, Cause.PERMANENT,
            "{file} ({field}) does not open with the password of {argument}: the password is wrong, or "
            "the file is damaged. Try `openssl pkcs12 -info -noout -in {file}`.",
            "A PKCS#12 file does not open with this password. A wrong password and a damaged file look the same."),
        Row("P12_UNENCRYPTED", 26, Cause.PERMANENT,
            "{file} ({field}) is not encrypted. Export it again with a password (`openssl pkcs12 -export`).",
            "A PKCS#12 file is not encrypted: a reader of it has the key."),
        Row("P12_NO_KEY", 26, Cause.PERMANENT,
            "{file} ({field}) holds no private key. Export certificate and key together (`openssl pkcs12 -export -inkey`).",
            "A PKCS#12 file holds no private key."),
        Row("P12_NO_CERT", 26, Cause.PERMANENT,
            "{file} ({field}) holds no certificate. Export certificate and key together (`openssl pkcs12 -export -in`).",
            "A PKCS#12 file holds no certificate of its key."),
        Row("P12_KEY_MISMATCH", 26, Cause.PERMANENT,
            "{file} ({field}): its key is not the key of its certificate {subject}. Export the pair that belongs together.",
            "The key and the certificate of a PKCS#12 file do not belong together."),
        Row("P12_EXTRA_LEAF", 26, Cause.PERMANENT,
            "{file} ({field}) holds {subject} beside its own certificate, and that is no authority. Export one certificate a file.",
            "A PKCS#12 file holds a second certificate that is no authority."),
        Row("CA_FILE", 26, Cause.PERMANENT,
            "{file} (ca_cert_path) {reason}. Name a PEM file with the certificate of the authority.",
            "The file of authorities holds no certificate that can be read."),
        Row("CA_NOT_CA", 26, Cause.PERMANENT,
            "{file} (ca_cert_path): {subject} is no authority (its basic constraints do not say CA). Name the certificate that signed yours.",
            "A certificate in the file of authorities is none."),
        Row("CA_HAS_PRIVATE_KEY", 26, Cause.PERMANENT,
            "{file} (ca_cert_path) holds a private key, which must not leave the authority. Take it "
            "out of this file, and draw a new one if the file was copied.",
            "The file of authorities, which goes to every host, holds a private key."),
        Row("TLS_CRL_UNREADABLE", 26, Cause.PERMANENT,
            "{file} (crl_path) is neither a PEM nor a DER revocation list ({size} bytes). Name the list that the authority publishes.",
            "A revocation list cannot be read."),
        Row("TLS_CRL_FOREIGN_CONTENT", 26, Cause.PERMANENT,
            "{file} (crl_path) holds a {kind}. A file of revocation lists must hold nothing else; take it out.",
            "A file of revocation lists holds something else, which OpenSSL would trust."),
    )  # fmt: skip


class CertificateError(SecureChannelError):
    """A certificate or a revocation list can be read, and does not hold what TLS needs."""

    rows = (
        Row("TLS_CERT_EXPIRED", 27, Cause.PERMANENT,
            "{file}: {subject} expired on {date}, {days} days ago. Put a new one in its place; no process need be restarted for it.",
            "A certificate is no longer valid."),
        Row("TLS_CERT_NOT_YET_VALID", 27, Cause.PERMANENT,
            "{file}: {subject} is valid from {date}, and here it is {now}. Check the clocks of this host and of the authority.",
            "A certificate is not valid yet: a wrong clock, usually."),
        Row("TLS_CA_EXPIRED", 27, Cause.PERMANENT,
            "{file}: the authority {subject} expired on {date}, {days} days ago. Every certificate needs a new authority.",
            "The authority's own certificate is no longer valid."),
        Row("TLS_CERT_REVOKED", 27, Cause.PERMANENT,
            "{file}: {subject}, serial {serial}, was revoked on {date} by {crl_file}. Ask for a new certificate.",
            "A certificate of ours is on the revocation list."),
        Row("TLS_CRL_MISSING_ISSUER", 27, Cause.PERMANENT,
            "{file} (crl_path) holds no list of {issuer}. Add it: every authority of the chain needs one.",
            "Revocation is checked, and the list of one authority is missing."),
        Row("TLS_CRL_EXPIRED", 27, Cause.PERMANENT,
            "{file} (crl_path): the list of {issuer} was to be renewed by {date}. Fetch the newest one; no process need be restarted for it.",
            "The next revocation list is overdue."),
        Row("TLS_CRL_NOT_YET_VALID", 27, Cause.PERMANENT,
            "{file} (crl_path): the list of {issuer} is valid from {date}, and here it is {now}. Check the clocks.",
            "A revocation list comes from the future."),
        Row("TLS_CRL_BAD_SIGNATURE", 27, Cause.PERMANENT,
            "{file} (crl_path): the list is not signed by {issuer} of {ca_file}. Name the list of that authority.",
            "A revocation list is not signed by the authority it names."),
        Row("TLS_CA_NO_CRLSIGN", 27, Cause.PERMANENT,
            "{file} (ca_cert_path): {subject} may not sign revocation lists (key usage cRLSign). "
            "Make the authority again with it, or leave crl_path empty.",
            "The authority may not sign revocation lists."),
        Row("TLS_EKU", 27, Cause.PERMANENT,
            "{file} ({field}): {subject} lacks the extended key usage {usage}. Make the certificate again with it.",
            "A certificate is not made for the side that it is used on."),
        Row("TLS_NO_SAN", 27, Cause.PERMANENT,
            "{file}: {subject} has no subject alternative name, and its common name is not used. Make it again with an IP or DNS name of {wanted}.",
            "A server's certificate has no subject alternative name; its common name does not count."),
        Row("TLS_UNKNOWN_CA", 27, Cause.PERMANENT,
            "{file}: {subject} was issued by {issuer} (key id {issuer_key}), which is not in "
            "{ca_file} (key ids {ca_keys}). Name the authority that signed it.",
            "A certificate was issued by no authority that is trusted here."),
        Row("TLS_KEY_WEAK", 27, Cause.PERMANENT,
            "{file}: {subject} has a key of {found}, and {wanted} is the least. Make the certificate again with a longer key.",
            "A key is too short to protect anything."),
        Row("TLS_SIG_WEAK", 27, Cause.PERMANENT,
            "{file}: {subject} is signed with {algorithm}. Make it again with SHA-256 or better.",
            "A certificate is signed with a broken digest."),
        Row("TLS_LEAF_IS_CA", 27, Cause.PERMANENT,
            "{file}: {subject} is an authority, and a process must not hold one. Use a certificate that it has signed.",
            "A process would present the certificate of an authority."),
        Row("TLS_IDENTITY", 27, Cause.PERMANENT,
            "{file}: {subject} names {value!r}: {rule}. Make the certificate again with `recovery certs init DIR --nodes ID`.",
            "A certificate's own identity cannot be read."),
    )  # fmt: skip
