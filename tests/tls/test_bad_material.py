"""What is wrong with the files of the secure channel: one row each, with its code and what its sentence must name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from recovery.errors import ChannelFileError, SecureChannelError
from recovery.tls import checked_files, config_file, material
from recovery.tls.side import Side
from tests.needs import needs_root, needs_tool
from tests.tls import made
from tests.tls.made import CLIENT, DAY, NOW, PASSWORD, SERVER, Place, pem


class Row(NamedTuple):
    """One bad input."""

    name: str
    code: str
    says: str
    """What the sentence must hold."""
    breaks: Callable[[Place], object]
    side: Side = Side.SERVER
    password: bytes | None = PASSWORD


def _raw(data: bytes) -> Callable[[Place], object]:
    return lambda place: place.put("config.json", data)


def _keys(**changes: Any) -> Callable[[Place], object]:
    return lambda place: place.write_config(**changes)


def _p12(data: Callable[[], bytes]) -> Callable[[Place], object]:
    return lambda place: place.put("server.p12", data(), 0o600)


def _own(make: Callable[[], made.Pair]) -> Callable[[Place], object]:
    return lambda place: place.own(make())


def _ca(data: Callable[[], bytes]) -> Callable[[Place], object]:
    return lambda place: place.put("ca.crt", data())


def _crl(data: Callable[[], bytes]) -> Callable[[Place], object]:
    return lambda place: place.lists(data())


def _instead(name: str, make: Callable[[Path], object]) -> Callable[[Place], object]:
    def broken(place: Place) -> None:
        path = place.directory / name
        path.unlink()
        make(path)

    return broken


def _linked(place: Place) -> None:
    path = place.directory / "server.p12"
    path.rename(place.directory / "elsewhere.p12")
    path.symlink_to("elsewhere.p12")


def _authority_that_signs_no_lists(place: Place) -> None:
    root = made.signed("no lists", authority=True, crl_sign=False)
    place.put("ca.crt", root.pem())
    place.own(made.signed("leaf", root))
    place.lists(made.crl_pem(made.crl(root)))


def _revoked_between(place: Place) -> None:
    between = made.signed("between", made.root(), authority=True)
    place.own(made.signed("leaf", between), others=(between,))
    place.lists(made.crl_pem(made.crl(made.root(), [between]), made.crl(between)))


def _list_of_one_authority_only(place: Place) -> None:
    between = made.signed("between", made.root(), authority=True)
    place.own(made.signed("leaf", between), others=(between,))
    place.lists(made.crl_pem(made.crl(made.root())))


def _expired_authority(place: Place) -> None:
    root = made.signed("old root", authority=True, begin=NOW - 20 * DAY, end=NOW - 3 * DAY)
    place.put("ca.crt", root.pem())
    place.own(made.signed("leaf", root))


def _world_writable(place: Place) -> None:
    place.directory.chmod(0o777)


def _pair_of_two() -> bytes:
    other = made.signed("other", made.root())
    return made.p12(made.leaf(), without_certificate=True, others=(other,))


def _bit_flipped() -> bytes:
    data = bytearray(made.p12(made.leaf()))
    data[len(data) // 2] ^= 1
    return bytes(data)


def _mismatched(place: Place) -> None:
    place.put("server.p12", made.p12(made.leaf(), others=(made.signed("x", made.root()),)), 0o600)


def _patched(data: bytes, was: bytes, now: bytes) -> bytes:
    """DER with other bytes in one place: what no library would write."""
    assert data.count(was) >= 1
    return data.replace(was, now, 1)


def _of_version_10(pair: made.Pair) -> bytes:
    der = pair.certificate.public_bytes(serialization.Encoding.DER)
    return _patched(der, b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x09")


def _with_an_extension_twice(pair: made.Pair) -> bytes:
    """The identifier of its key says that it is the basic constraints."""
    return _patched(
        pair.certificate.public_bytes(serialization.Encoding.DER),
        b"\x06\x03\x55\x1d\x0e",
        b"\x06\x03\x55\x1d\x13",
    )


def _list_of_version_10() -> bytes:
    return _patched(
        made.crl(made.root()).public_bytes(serialization.Encoding.DER), b"\x02\x01\x01", b"\x02\x01\x09"
    )


def _bundle_of_an_extension_twice() -> bytes:
    leaf = made.leaf()
    return made.p12(made.Pair(x509.load_der_x509_certificate(_with_an_extension_twice(leaf)), leaf.key))


SEEDS_TYPO = "ECDHE-RSA-AES128-GCM-SHA257"

ROWS = (
    # --- config.json
    Row("config missing", "FILE_MISSING", "config.json (config_file_path) cannot be read: No such file", lambda place: place.config.unlink()),
    Row("config a directory", "FILE_NOT_REGULAR", "config.json (config_file_path) is a directory", _instead("config.json", Path.mkdir)),
    Row("config a pipe", "FILE_NOT_REGULAR", "is a pipe", _instead("config.json", os.mkfifo)),
    Row("config 0666", "FILE_PERM", "mode 0666: others than the owner may change it. Run chmod go-w", lambda place: place.config.chmod(0o666)),
    Row("config 10 MB", "FILE_TOO_BIG", "has 10000000 bytes, at most 65536 are read", _raw(b" " * 10_000_000)),
    Row("config empty", "CONFIG_JSON", "it is empty", _raw(b"\n ")),
    Row("config no object", "CONFIG_JSON", "it holds a list, not an object", _raw(b"[]")),
    Row("config trailing comma", "CONFIG_JSON", "line 2, column 1", _raw(b'{"crl_path": "",\n}')),
    *(Row(f"expected_hostname {name!r:.9}", "CONFIG_JSON", "is neither an IP address nor a host name", _keys(expected_hostname=name)) for name in (".", "x..y", "*", "a" * 300, "bücher.example")),
    Row("config byte order mark", "CONFIG_JSON", "BOM", _raw(b"\xef\xbb\xbf{}")),
    Row("config UTF-16", "CONFIG_JSON", "byte 0 is not UTF-8", _raw('{"crl_path": ""}'.encode("utf-16"))),
    Row("config NaN", "CONFIG_JSON", "NaN is no number of JSON", _raw(b'{"cert_expire_warning_time_in_day": NaN}')),
    Row("config key twice", "CONFIG_JSON", 'the key "crl_path" stands there twice', _raw(b'{"crl_path": "a", "crl_path": "b"}')),
    Row("config key unknown", "CONFIG_JSON", 'the key "sever_cert_path" is unknown', _keys(sever_cert_path="x")),
    Row("config too deep", "CONFIG_JSON", "nested too deeply", _raw(b'{"recovery":' + b"[" * 30_000)),
    Row("config 5,000 digits", "CONFIG_JSON", "digits", _raw(b'{"cert_expire_warning_time_in_day": ' + b"9" * 5_000 + b"}")),
    Row("config path no text", "CONFIG_JSON", "ca_cert_path must be text, not 7", _keys(ca_cert_path=7)),
    Row("config path with newline", "CONFIG_JSON", "control characters", _keys(ca_cert_path="/a\nb")),
    Row("config path with NUL", "CONFIG_JSON", "control characters", _keys(ca_cert_path="/a\0b")),
    *(
        Row(f"days {value!r}", "CONFIG_RANGE", f"cert_expire_warning_time_in_day={json.dumps(value)}: must be a whole number of days from 1 to 3650", _keys(cert_expire_warning_time_in_day=value))
        for value in (0, -1, 10**9, "90", True, 90.0, None)
    ),
    Row("authority not named", "CONFIG_TLS_INCOMPLETE", "ca_cert_path is empty", _keys(ca_cert_path="")),
    Row("server not named", "CONFIG_TLS_INCOMPLETE", "server_cert_path is not set", _keys(server_cert_path="")),
    Row("client not named", "CONFIG_TLS_INCOMPLETE", "client_cert_path is not set", _keys(client_cert_path=""), Side.CLIENT),
    Row("cipher unknown", "CONFIG_CIPHER", "entry 1 'NOPE' is unknown", _keys(cipher_list="NOPE")),
    Row("cipher typo among good ones", "CONFIG_CIPHER", f"entry 2 '{SEEDS_TYPO}' is unknown", _keys(cipher_list=f"ECDHE-RSA-AES128-GCM-SHA256:{SEEDS_TYPO}")),
    Row("cipher of TLS 1.3", "CONFIG_CIPHER", "is a suite of TLS 1.3", _keys(cipher_list="TLS_AES_128_GCM_SHA256")),
    Row("cipher entry empty", "CONFIG_CIPHER", "entry 2 is empty", _keys(cipher_list="ECDHE-RSA-AES128-GCM-SHA256:")),
    Row("cipher operator", "CONFIG_CIPHER", "entry 1 '!ALL' is an operator", _keys(cipher_list="!ALL")),
    Row("cipher alias", "CONFIG_CIPHER", "entry 1 'DEFAULT' is unknown", _keys(cipher_list="DEFAULT")),
    Row("cipher list of nothing usable", "CONFIG_CIPHER", "none of its 2 entries can be used", _keys(cipher_list="DHE-DSS-AES128-GCM-SHA256:DHE-PSK-AES128-CCM")),
    Row("cipher list too long", "CONFIG_CIPHER", "has 65 entries", _keys(cipher_list=":".join(["X"] * 65))),
    *(
        Row(f"cipher weak {entry}", "CONFIG_CIPHER_WEAK", f"entry 1 {entry!r} is no protection", _keys(cipher_list=entry))
        for entry in ("NULL", "aNULL", "@SECLEVEL=0", "ECDHE-RSA-RC4-SHA", "EXP-RC4-MD5")
    ),
    # --- the bundle
    Row("bundle missing", "FILE_MISSING", "server.p12 (server_cert_path) cannot be read", _instead("server.p12", str)),
    Row("bundle a directory", "FILE_NOT_REGULAR", "is a directory", _instead("server.p12", Path.mkdir)),
    Row("bundle a link", "FILE_SYMLINK", "server.p12 (server_cert_path) is a symbolic link", _linked),
    Row("bundle 0644", "FILE_PERM", "has mode 0644: others than the owner may read or change it. Run chmod 0600", lambda place: (place.directory / "server.p12").chmod(0o644)),
    Row("bundle 0640", "FILE_PERM", "has mode 0640", lambda place: (place.directory / "server.p12").chmod(0o640)),
    Row("bundle where everybody writes", "FILE_PERM", "has mode 0777: everybody may put another file there", _world_writable),
    Row("bundle 2 MiB", "FILE_TOO_BIG", "at most 1048576 are read", _p12(lambda: b"0" * (2 << 20))),
    Row("bundle empty", "P12_FORMAT", "is no PKCS#12 file: it is empty", _p12(bytes)),
    Row("bundle PEM", "P12_FORMAT", "it is PEM. Convert it", _p12(lambda: made.leaf().pem())),
    Row("bundle garbage", "P12_FORMAT", "something else", _p12(lambda: b"garbage" * 100)),
    Row("bundle cut", "P12_FORMAT", "it is cut", _p12(lambda: made.p12(made.leaf())[:-40])),
    Row("bundle bit flipped", "P12_PASSWORD_OR_CORRUPT", "the password is wrong, or the file is damaged", _p12(_bit_flipped)),
    Row("password wrong", "P12_PASSWORD_OR_CORRUPT", "server.p12 (server_cert_path) does not open with the password of server_password", lambda place: None, password=b"another"),
    Row("password of the client's wrong", "P12_PASSWORD_OR_CORRUPT", "client.p12 (client_cert_path) does not open with the password of client_password", lambda place: None, Side.CLIENT, b"another"),
    Row("password missing", "P12_PASSWORD_MISSING", "server_password is not given", lambda place: None, password=None),
    Row("password empty", "P12_PASSWORD_MISSING", "server_password is not given", lambda place: None, password=b""),
    Row("bundle not encrypted", "P12_UNENCRYPTED", "is not encrypted", _p12(lambda: made.p12(made.leaf(), password=None))),
    Row("bundle not encrypted, no password", "P12_UNENCRYPTED", "is not encrypted", _p12(lambda: made.p12(made.leaf(), password=None)), password=None),
    Row("bundle without key", "P12_NO_KEY", "holds no private key", _p12(lambda: made.p12(made.leaf(), without_key=True))),
    Row("bundle without certificate", "P12_NO_CERT", "holds no certificate", _p12(lambda: made.p12(made.leaf(), without_certificate=True))),
    Row("bundle whose key is another's", "P12_KEY_MISMATCH", "its key is not the key of its certificate CN=other", _p12(_pair_of_two)),
    Row("bundle with two leaves", "P12_EXTRA_LEAF", "holds CN=x beside its own", _mismatched),
    # --- the authority
    Row("authority missing", "FILE_MISSING", "ca.crt (ca_cert_path) cannot be read", _instead("ca.crt", str)),
    Row("authority empty", "CA_FILE", "ca.crt (ca_cert_path) is empty", _ca(bytes)),
    Row("authority garbage", "CA_FILE", "holds no PEM certificate", _ca(lambda: b"garbage")),
    Row("authority cut", "CA_FILE", "holds no PEM certificate", _ca(lambda: made.root().pem()[:200])),
    Row("authority DER", "CA_FILE", "holds no PEM certificate", _ca(lambda: made.root().certificate.public_bytes(serialization.Encoding.DER))),
    Row("authority a leaf", "CA_NOT_CA", "CN=leaf is no authority", _ca(lambda: made.leaf().pem())),
    Row("authority with its key", "CA_HAS_PRIVATE_KEY", "holds a private key", _ca(lambda: made.root().pem() + made.root().key_pem())),
    Row("authority expired", "TLS_CA_EXPIRED", "the authority CN=old root expired on 2026-06-28 12:00 UTC, 3 days ago", _expired_authority),
    Row("authority not yet valid", "TLS_CERT_NOT_YET_VALID", "CN=new root is valid from 2026-07-02", _ca(lambda: made.signed("new root", authority=True, begin=NOW + DAY).pem())),
    # --- the certificate
    Row("expired", "TLS_CERT_EXPIRED", "CN=old expired on 2026-06-26 12:00 UTC, 5 days ago", _own(lambda: made.signed("old", made.root(), begin=NOW - 9 * DAY, end=NOW - 5 * DAY))),
    Row("not yet valid", "TLS_CERT_NOT_YET_VALID", "CN=new is valid from 2026-07-03 12:00 UTC, and here it is 2026-07-01 12:00 UTC", _own(lambda: made.signed("new", made.root(), begin=NOW + 2 * DAY))),
    Row("an authority as leaf", "TLS_LEAF_IS_CA", "CN=root is an authority", _own(made.root)),
    Row("worker's on the scheduler", "TLS_EKU", "lacks the extended key usage serverAuth", _own(lambda: made.signed("w", made.root(), usages=(CLIENT,)))),
    Row("scheduler's on a worker", "TLS_EKU", "lacks the extended key usage clientAuth", _own(lambda: made.signed("s", made.root(), usages=(SERVER,))), Side.CLIENT),
    Row("no usage", "TLS_EKU", "serverAuth", _own(lambda: made.signed("s", made.root(), usages=()))),
    Row("no alternative name", "TLS_NO_SAN", "CN=s has no subject alternative name", _own(lambda: made.signed("s", made.root(), san=()))),
    Row("only an identity as name", "TLS_NO_SAN", "has no subject alternative name", _own(lambda: made.signed("s", made.root(), san=("ft-role:scheduler",)))),
    Row("of another authority", "TLS_UNKNOWN_CA", "was issued by CN=other", _own(lambda: made.signed("s", made.signed("other", authority=True)))),
    Row("of another authority of the same name", "TLS_UNKNOWN_CA", "was issued by CN=root (key id ", _own(lambda: made.signed("s", made.signed("root", authority=True)))),
    Row("RSA of 1,024 bits", "TLS_KEY_WEAK", "has a key of 1024 bits (RSA), and RSA of 2048", _own(lambda: made.signed("s", made.root(), key=rsa.generate_private_key(65_537, 1_024)))),
    Row("EC of 192 bits", "TLS_KEY_WEAK", "has a key of 192 bits (EC)", _own(lambda: made.signed("s", made.root(), key=ec.generate_private_key(ec.SECP192R1())))),
    Row("two node ids", "TLS_IDENTITY", "it may name one ft-node only", _own(lambda: made.signed("s", made.root(), san=("127.0.0.1", "ft-node:a", "ft-node:b")))),
    Row("node id with a path", "TLS_IDENTITY", "names 'ft-node:../a'", _own(lambda: made.signed("s", made.root(), san=("127.0.0.1", "ft-node:../a")))),
    Row("role unknown", "TLS_IDENTITY", "a role is one of scheduler, worker", _own(lambda: made.signed("s", made.root(), san=("127.0.0.1", "ft-role:king")))),
    # --- the revocation list
    Row("list missing", "FILE_MISSING", "(crl_path) cannot be read", _keys(crl_path="/nowhere/crl.pem")),
    Row("list empty", "TLS_CRL_UNREADABLE", "neither a PEM nor a DER revocation list (0 bytes)", _crl(bytes)),
    Row("list garbage", "TLS_CRL_UNREADABLE", "(7 bytes)", _crl(lambda: b"garbage")),
    Row("list cut", "TLS_CRL_UNREADABLE", "neither a PEM", _crl(lambda: made.crl_pem(made.crl(made.root()))[:-30])),
    Row("list holds a certificate", "TLS_CRL_FOREIGN_CONTENT", "holds a certificate", _crl(lambda: made.crl_pem(made.crl(made.root())) + made.root().pem())),
    Row("list holds a key", "TLS_CRL_FOREIGN_CONTENT", "holds a private key", _crl(lambda: made.root().key_pem())),
    Row("list of version 10", "TLS_CRL_UNREADABLE", "neither a PEM", _crl(_list_of_version_10)),
    Row("list of version 10 as PEM", "TLS_CRL_UNREADABLE", "neither a PEM", _crl(lambda: pem(_list_of_version_10(), "X509 CRL"))),
    Row("authority of version 10", "CA_FILE", "no PEM certificate that can be read", _ca(lambda: pem(_of_version_10(made.root())))),
    Row("authority with an extension twice", "CA_FILE", "no PEM certificate that can be read", _ca(lambda: pem(_with_an_extension_twice(made.root())))),
    Row("bundle with an extension twice", "P12_FORMAT", "a certificate in it cannot be read", _p12(_bundle_of_an_extension_twice)),
    Row("list expired", "TLS_CRL_EXPIRED", "the list of CN=root was to be renewed by 2026-06-30 12:00 UTC", _crl(lambda: made.crl_pem(made.crl(made.root(), begin=NOW - 9 * DAY, end=NOW - DAY)))),
    Row("list of tomorrow", "TLS_CRL_NOT_YET_VALID", "valid from 2026-07-02", _crl(lambda: made.crl_pem(made.crl(made.root(), begin=NOW + DAY)))),
    Row("list signed by another", "TLS_CRL_BAD_SIGNATURE", "not signed by CN=root", _crl(lambda: made.crl_pem(made.crl(made.root(), key=made.leaf().key)))),
    Row("list of another authority", "TLS_CRL_BAD_SIGNATURE", "not signed by CN=other", _crl(lambda: made.crl_pem(made.crl(made.signed("other", authority=True))))),
    Row("authority that may sign no list", "TLS_CA_NO_CRLSIGN", "CN=no lists may not sign revocation lists", _authority_that_signs_no_lists),
    Row("list of one authority missing", "TLS_CRL_MISSING_ISSUER", "holds no list of CN=between", _list_of_one_authority_only),
    Row("own certificate revoked", "TLS_CERT_REVOKED", "CN=leaf, serial ", _crl(lambda: made.crl_pem(made.crl(made.root(), [made.leaf()])))),
    Row("authority between revoked", "TLS_CERT_REVOKED", "CN=between, serial ", _revoked_between),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_is_wrong_is_named(row: Row, tmp_path: Path) -> None:
    place = Place(tmp_path)
    row.breaks(place)
    try:
        with pytest.raises(SecureChannelError) as caught:
            material.load(config_file.read_config_file(place.config), row.side, row.password, NOW)
    finally:
        tmp_path.chmod(0o700)
    text = str(caught.value)

    assert caught.value.code == row.code, text
    assert text.startswith(f"{row.code}: ")
    assert row.says in text
    assert text.isprintable()
    assert len(text) < 1_000
    assert PASSWORD.decode() not in text
    assert "another" not in text.replace("another file", "")
    assert "BEGIN" not in text


def test_what_is_right_is_taken(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for side in Side:
        found = material.load(config_file.read_config_file(place.config), side, PASSWORD, NOW)
        assert PASSWORD.decode() not in repr(found)
        assert "PRIVATE" not in repr(vars(found))


def test_a_list_in_der_is_taken(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.lists(made.crl(made.root()).public_bytes(serialization.Encoding.DER))

    assert (
        len(material.load(config_file.read_config_file(place.config), Side.SERVER, PASSWORD, NOW).lists) == 1
    )


@pytest.mark.root
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    needs_root()
    place = Place(tmp_path)
    os.chown(tmp_path / "server.p12", 12_345, -1)
    with pytest.raises(SecureChannelError) as caught:
        material.load(config_file.read_config_file(place.config), Side.SERVER, PASSWORD, NOW)

    assert caught.value.code == "FILE_OWNER"
    assert "belongs to user 12345" in str(caught.value)


def test_a_password_that_is_not_ascii_opens_its_file(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.put("server.p12", made.p12(made.leaf(), password="schlüssel-钥匙".encode()), 0o600)

    found = material.load(
        config_file.read_config_file(place.config), Side.SERVER, "schlüssel-钥匙".encode(), NOW
    )

    assert found.own.certificate == made.leaf().certificate


def test_a_certificate_signed_with_sha_1_is_refused(tmp_path: Path) -> None:
    # Nothing else still signs with SHA-1.
    needs_tool("openssl")
    place = Place(tmp_path)
    pair = made.signed_with_sha_1(tmp_path, made.root())
    leaf = pair.certificate
    place.own(pair)
    with pytest.raises(SecureChannelError) as caught:
        material.load(
            config_file.read_config_file(place.config), Side.SERVER, PASSWORD, leaf.not_valid_before_utc
        )

    assert caught.value.code == "TLS_SIG_WEAK"
    assert "CN=old digest is signed with sha1" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"a\nb\n", "holds more than one line"),
        (b"a\0b", "holds more than one line"),
        (b"\xff\n", "is not UTF-8"),
    ],
)
def test_a_password_file_that_holds_no_password_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "password"
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(ChannelFileError, match=f"PASSWORD_FILE: .*{says}") as caught:
        checked_files.read_password(path, "MS_CLIENT_PASSWORD_FILE")

    assert "MS_CLIENT_PASSWORD_FILE" in str(caught.value)


@pytest.mark.parametrize("data", [b"secret", b"secret\n", b"secret\r\n"])
def test_a_password_file_is_one_line_with_or_without_its_end(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "password"
    path.write_bytes(data)
    path.chmod(0o600)

    assert checked_files.read_password(path, "x") == b"secret"


def test_the_rows_are_many_and_differ() -> None:
    assert len(ROWS) >= 80
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_every_code_of_the_material_has_a_row() -> None:
    from recovery.errors import CertificateError, ChannelSettingError

    rows = (*ChannelSettingError.rows, *ChannelFileError.rows, *CertificateError.rows)
    elsewhere = {"FILE_OWNER", "PASSWORD_FILE", "CONFIG_HOST_EMPTY", "TLS_SIG_WEAK"}

    assert {row.code for row in rows} - elsewhere == {row.code for row in ROWS}
