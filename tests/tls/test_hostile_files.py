"""Whatever lies in a file of the secure channel: an error of ours that names it, and no other."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as some

from recovery.errors import SecureChannelError
from recovery.tls import authorities, ciphers, config_file, material
from recovery.tls.side import Side
from tests.tls import made
from tests.tls.made import NOW, PASSWORD, Place, pem

SEEDS = {
    "config.json": b'{"server_cert_path": "a", "ca_cert_path": "b", "cipher_list": "ECDHE-RSA-AES128-GCM-SHA256"}',
    "ca.crt": made.root().pem(),
    "server.p12": made.p12(made.leaf()),
    "crl.pem": made.crl(made.root()).public_bytes(serialization.Encoding.DER),
}
AUTHORITY = made.root().certificate.public_bytes(serialization.Encoding.DER)
"""Damaged before it becomes PEM: behind the base64 lie the parser's own surprises."""


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@some.composite
def damaged(draw: some.DrawFn) -> tuple[str, bytes]:
    """A file, and what it holds: noise, or a right one that was cut, doubled or changed in some bytes."""
    name = draw(some.sampled_from(sorted(SEEDS)))
    if draw(some.booleans()):
        return name, draw(some.binary(max_size=300))
    as_der = name == "ca.crt" and draw(some.booleans())
    data = bytearray(AUTHORITY if as_der else SEEDS[name])
    for place in draw(some.lists(some.integers(0, len(data) - 1), min_size=1, max_size=8)):
        data[place] = draw(some.integers(0, 255))
    made_of = bytes(data[: draw(some.integers(0, len(data)))]) if draw(some.booleans()) else bytes(data)
    return name, pem(made_of) if as_der else made_of


@given(damaged())
def test_a_damaged_file_is_used_or_refused_by_an_error_of_ours(
    directory: Path, file: tuple[str, bytes]
) -> None:
    name, data = file
    place = Place(directory)
    place.lists(SEEDS["crl.pem"])
    place.put(name, data, 0o600)
    try:
        material.load(config_file.read_config_file(place.config), Side.SERVER, PASSWORD, NOW)
    except SecureChannelError as error:
        assert str(error).isprintable()  # noqa: PT017 - most examples are refused, some are right
        assert PASSWORD.decode() not in str(error)  # noqa: PT017 - as above


def test_an_authority_whose_serial_number_is_not_positive_is_used(directory: Path) -> None:
    place = Place(directory)
    serial = AUTHORITY.index(b"\x02\x14") + 2
    place.put("ca.crt", pem(AUTHORITY[:serial] + b"\x80" + AUTHORITY[serial + 1 :]), 0o600)
    [found] = authorities.read_authorities(directory / "ca.crt", NOW)
    assert found.subject == made.root().certificate.subject
    place.lists(SEEDS["crl.pem"])
    assert material.load(config_file.read_config_file(place.config), Side.SERVER, PASSWORD, NOW).trusted == (
        found,
    )


@given(some.text(max_size=200))
def test_any_cipher_list_is_read_or_refused(text: str) -> None:
    try:
        chosen = ciphers.choose(text, "config.json")
    except SecureChannelError:
        return
    assert chosen.names
    assert set(chosen.names) <= set(ciphers.ALLOWED)
