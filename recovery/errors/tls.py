"""What is wrong with the material of the secure channel (TLS), found before a connection is made.

Members of a family share its exit code: what a launcher does about them is the same. Each has a code of its own.
No sentence holds a password or a key.
"""

from __future__ import annotations

from recovery.errors.base import RecoveryError


class SecureChannelError(RecoveryError):
    """TLS is asked for and cannot be had. Nothing goes on in plain text instead."""

    template = "{field}: {reason}. {next_step}"


# --- config.json and its arguments ---------------------------------------------------------------------------------------


class ChannelSettingError(SecureChannelError):
    """A key of config.json, or an argument that belongs to it, is wrong."""

    exit_code = 25


class ConfigJsonError(ChannelSettingError):
    """config.json cannot be read as one JSON object of known keys."""

    code = "CONFIG_JSON"
    template = "{file}: {reason}. Write one JSON object with the keys server_cert_path, client_cert_path, ca_cert_path, crl_path, cipher_list, cert_expire_warning_time_in_day and expected_hostname."


class ConfigRangeError(ChannelSettingError):
    """A number of config.json is outside its range, or none."""

    code = "CONFIG_RANGE"
    template = "{file}: {field}={value}: {rule}. Set it, for example to {example}."


class ConfigTlsIncompleteError(ChannelSettingError):
    """TLS is on and part of its material is not named."""

    code = "CONFIG_TLS_INCOMPLETE"
    template = "{field} is {state}, and enable_ssl is on: {rule}. {next_step}"


class ConfigCipherError(ChannelSettingError):
    """An entry of cipher_list is not one that can be used, or none is left."""

    code = "CONFIG_CIPHER"
    template = "{file}: cipher_list: {reason}. Use some of {allowed}, with : between them."


class ConfigCipherWeakError(ChannelSettingError):
    """An entry of cipher_list would switch encryption or authentication off."""

    code = "CONFIG_CIPHER_WEAK"
    template = "{file}: cipher_list: entry {position} {entry!r} is no protection. Take it out; use some of {allowed}."


class ConfigHostEmptyError(ChannelSettingError):
    """There is no name that the scheduler's certificate could be checked for."""

    code = "CONFIG_HOST_EMPTY"
    template = "{field} is empty: the scheduler's certificate is checked for it. Set {field} to the scheduler's address or name."


# --- files that hold secrets, or what is trusted ----------------------------------------------------------------------------


class ChannelFileError(SecureChannelError):
    """A file of the secure channel cannot be used as it lies there."""

    exit_code = 26


class FileMissingError(ChannelFileError):
    """A named file is not there, or cannot be read."""

    code = "FILE_MISSING"
    template = "{file} ({field}) cannot be read: {reason}. Put the file there, or name the right one."


class FileNotRegularError(ChannelFileError):
    """A directory, a pipe or a device stands where a file is named."""

    code = "FILE_NOT_REGULAR"
    template = "{file} ({field}) is a {kind}, and must be a regular file. Name the file itself."


class FileSymlinkError(ChannelFileError):
    """A symbolic link stands where a secret is named."""

    code = "FILE_SYMLINK"
    template = "{file} ({field}) is a symbolic link, and a secret is read from no link. Name the file that it leads to."


class FilePermissionsError(ChannelFileError):
    """Others than the owner may read or change a file, or the directory it lies in."""

    code = "FILE_PERM"
    template = "{file} ({field}) has mode {mode}: {rule}. Run chmod {wanted} {file}."


class FileOwnerError(ChannelFileError):
    """A file belongs to another user."""

    code = "FILE_OWNER"
    template = "{file} ({field}) belongs to user {owner}, and this process runs as {user}. Run as that user, or copy the file."


class FileTooBigError(ChannelFileError):
    """A file is longer than any of its kind."""

    code = "FILE_TOO_BIG"
    template = "{file} ({field}) has {size} bytes, at most {most} are read. Name the right file."


class PasswordFileError(ChannelFileError):
    """A password file holds no password."""

    code = "PASSWORD_FILE"
    template = "{file} ({field}) {reason}. Write the password into it as one line."


class P12FormatError(ChannelFileError):
    """A file is no PKCS#12 bundle."""

    code = "P12_FORMAT"
    template = "{file} ({field}) is no PKCS#12 file: {reason}. {next_step}"


class P12PasswordMissingError(ChannelFileError):
    """A PKCS#12 file is named without its password."""

    code = "P12_PASSWORD_MISSING"
    template = "{file} ({field}) has no password: {argument} is not given. Give it to init or set_ps_context, or name a 0600 file that holds it."


class P12PasswordError(ChannelFileError):
    """A PKCS#12 file does not open with this password. A wrong password and a damaged file look the same."""

    code = "P12_PASSWORD_OR_CORRUPT"
    template = "{file} ({field}) does not open with the password of {argument}: the password is wrong, or the file is damaged. Try `openssl pkcs12 -info -noout -in {file}`."


class P12UnencryptedError(ChannelFileError):
    """A PKCS#12 file is not encrypted: whoever reads it has the key."""

    code = "P12_UNENCRYPTED"
    template = (
        "{file} ({field}) is not encrypted. Export it again with a password (`openssl pkcs12 -export`)."
    )


class P12NoKeyError(ChannelFileError):
    """A PKCS#12 file holds no private key."""

    code = "P12_NO_KEY"
    template = "{file} ({field}) holds no private key. Export certificate and key together (`openssl pkcs12 -export -inkey`)."


class P12NoCertificateError(ChannelFileError):
    """A PKCS#12 file holds no certificate of its key."""

    code = "P12_NO_CERT"
    template = "{file} ({field}) holds no certificate. Export certificate and key together (`openssl pkcs12 -export -in`)."


class P12KeyMismatchError(ChannelFileError):
    """The key and the certificate of a PKCS#12 file do not belong together."""

    code = "P12_KEY_MISMATCH"
    template = "{file} ({field}): its key is not the key of its certificate {subject}. Export the pair that belongs together."


class P12ExtraLeafError(ChannelFileError):
    """A PKCS#12 file holds a second certificate that is no authority."""

    code = "P12_EXTRA_LEAF"
    template = "{file} ({field}) holds {subject} beside its own certificate, and that is no authority. Export one certificate a file."


class CaFileError(ChannelFileError):
    """The file of authorities holds no certificate that can be read."""

    code = "CA_FILE"
    template = "{file} (ca_cert_path) {reason}. Name a PEM file with the certificate of the authority."


class CaNotCaError(ChannelFileError):
    """A certificate in the file of authorities is none."""

    code = "CA_NOT_CA"
    template = "{file} (ca_cert_path): {subject} is no authority (its basic constraints do not say CA). Name the certificate that signed yours."


class CaHasPrivateKeyError(ChannelFileError):
    """The file of authorities, which goes to every host, holds a private key."""

    code = "CA_HAS_PRIVATE_KEY"
    template = "{file} (ca_cert_path) holds a private key, which must not leave the authority. Take it out of this file, and draw a new one if the file was copied."


class CrlUnreadableError(ChannelFileError):
    """A revocation list cannot be read."""

    code = "TLS_CRL_UNREADABLE"
    template = "{file} (crl_path) is neither a PEM nor a DER revocation list ({size} bytes). Name the list that the authority publishes."


class CrlForeignContentError(ChannelFileError):
    """A file of revocation lists holds something else, which OpenSSL would trust."""

    code = "TLS_CRL_FOREIGN_CONTENT"
    template = (
        "{file} (crl_path) holds a {kind}. A file of revocation lists must hold nothing else; take it out."
    )
