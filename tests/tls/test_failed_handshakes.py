"""Handshakes that fail, by a peer that does not look at its own files as we do: the code that our side gives, with what OpenSSL said."""

from __future__ import annotations

import socket
import ssl
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from recovery.tls.channel import Channel
from recovery.tls.handshakes import why
from recovery.tls.side import Side
from tests.needs import needs_tool
from tests.tls import made
from tests.tls.made import CLIENT, PASSWORD, SERVER
from tests.tls.test_contexts import DAY, NOW, WAIT_S, World, signed


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def foreign(world: World, side: Side, pair: made.Pair | None, place: Path) -> ssl.SSLContext:
    """A peer's context that checks nothing and presents what it has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if side is Side.SERVER else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    if pair is not None:
        (place / "pair.pem").write_bytes(pair.pem() + pair.key_pem())
        context.load_cert_chain(place / "pair.pem")
    return context


def named(ours: ssl.SSLContext, theirs: ssl.SSLContext | bytes, side: Side, name: str = "127.0.0.1") -> str:
    """What our side says of the handshake; empty: it was through. Bytes: the peer speaks no TLS, but these."""
    here, there = socket.socketpair()

    def answer() -> None:
        try:
            if isinstance(theirs, bytes):
                there.recv(10_000 if side is Side.CLIENT else 0)
                there.sendall(theirs)
                return
            server_side = side is Side.CLIENT
            with theirs.wrap_socket(
                there, server_side=server_side, server_hostname=None if server_side else name
            ) as stream:
                stream.sendall(b"in")
                stream.recv(2)
        except OSError:
            return

    for each in (here, there):
        each.settimeout(WAIT_S)
    thread = threading.Thread(target=answer)
    thread.start()
    try:
        server_side = side is Side.SERVER
        with ours.wrap_socket(
            here, server_side=server_side, server_hostname=None if server_side else name
        ) as stream:
            # With TLS 1.3 the server judges the client's certificate after the client is through.
            stream.recv(2)
            stream.sendall(b"ok")
        return ""
    except OSError as error:
        return why(error, side)
    finally:
        here.close()
        thread.join(WAIT_S)
        there.close()


class Row(NamedTuple):
    """One peer of our scheduler."""

    name: str
    code: str
    peer: Callable[[World, Path], ssl.SSLContext | bytes]
    lists: Callable[[World], bytes] | None = None
    """What stands in our crl_path; None: none is given."""


def _with(**how: object) -> Callable[[World, Path], ssl.SSLContext]:
    usages = how.pop("usages", (CLIENT,))
    return lambda world, place: foreign(
        world, Side.CLIENT, signed("peer", world.root, usages=usages, san=("ft-node:w0",), **how), place
    )


def _own(world: World, place: Path) -> ssl.SSLContext:
    return foreign(world, Side.CLIENT, world.client, place)


def _of_another(name: str) -> Callable[[World, Path], ssl.SSLContext]:
    return lambda world, place: foreign(
        world, Side.CLIENT, signed("peer", signed(name, authority=True), usages=(CLIENT,)), place
    )


def _old(world: World, place: Path) -> ssl.SSLContext:
    context = _own(world, place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    return context


def _of_other_ciphers(world: World, place: Path) -> ssl.SSLContext:
    context = _own(world, place)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AES128-SHA:@SECLEVEL=0")
    return context


ROWS = (
    Row("no certificate", "TLS_CLIENT_CERT_MISSING", lambda world, place: foreign(world, Side.CLIENT, None, place)),
    Row("plain HTTP", "TLS_PEER_PLAINTEXT", lambda world, place: b"GET / HTTP/1.1\r\n\r\n"),
    Row("plain noise", "TLS_PEER_PLAINTEXT", lambda world, place: b"\x99" * 200),
    Row("another authority", "TLS_UNKNOWN_CA", _of_another("other")),
    Row("another authority of the same name", "TLS_UNKNOWN_CA", _of_another("root")),
    Row("expired", "TLS_CERT_EXPIRED", _with(begin=NOW - 9 * DAY, end=NOW - DAY)),
    Row("not yet valid", "TLS_CERT_NOT_YET_VALID", _with(begin=NOW + DAY, end=NOW + 9 * DAY)),
    Row("made for a server", "TLS_EKU", _with(usages=(SERVER,))),
    Row("a short key", "TLS_KEY_WEAK", _with(key=rsa.generate_private_key(65_537, 1_024))),
    Row("TLS 1.1", "TLS_VERSION", _old),
    Row("no cipher in common", "TLS_CIPHER", _of_other_ciphers),
    Row("revoked", "TLS_CERT_REVOKED", _own, lambda world: world.list_of(world.client)),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_scheduler_names_what_is_wrong_with_a_peer(row: Row, world: World, tmp_path: Path) -> None:
    if row.lists is not None:
        world.places[Side.SERVER].lists(row.lists(world))

    said = named(world.context(Side.SERVER), row.peer(world, tmp_path), Side.SERVER)

    assert said.startswith(f"{row.code}: "), said
    assert said.isprintable()


@pytest.mark.parametrize(
    ("name", "pair", "code"),
    [
        ("127.0.0.1", {"usages": (CLIENT,)}, "TLS_EKU"),
        ("10.0.0.1", {}, "TLS_HOST_MISMATCH"),
        ("10.0.0.1", {"san": ("10.0.0.2",)}, "TLS_HOST_MISMATCH"),
        ("127.0.0.1", {"san": ()}, "TLS_HOST_MISMATCH"),
        ("127.0.0.1", {"begin": NOW - 9 * DAY, "end": NOW - DAY}, "TLS_CERT_EXPIRED"),
    ],
    ids=["made for a worker", "another address", "two others", "no name", "expired"],
)
def test_a_worker_names_what_is_wrong_with_a_scheduler(
    world: World, tmp_path: Path, name: str, pair: dict[str, object], code: str
) -> None:
    server = signed("server", world.root, **{"usages": (SERVER,), **pair})

    said = named(world.context(Side.CLIENT), foreign(world, Side.SERVER, server, tmp_path), Side.CLIENT, name)

    assert said.startswith(f"{code}: "), said


@pytest.mark.parametrize(
    ("verify_code", "message", "code"),
    [
        (3, "unable to get certificate CRL", "TLS_CRL_MISSING_ISSUER"),
        (8, "CRL signature failure", "TLS_UNKNOWN_CA"),
        (11, "CRL is not yet valid", "TLS_CERT_NOT_YET_VALID"),
        (12, "CRL has expired", "TLS_CRL_EXPIRED"),
        (24, "invalid CA certificate", "TLS_CERTIFICATE"),
        (44, "Different CRL scope", "TLS_CERTIFICATE"),
        (67, "CA certificate key too weak", "TLS_KEY_WEAK"),
    ],
)
def test_what_openssl_verifies_is_named_by_its_number(verify_code: int, message: str, code: str) -> None:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]")
    error.verify_code, error.verify_message = verify_code, message

    for side in Side:
        assert why(error, side).startswith(f"{code}: ")
        assert why(error, side).endswith(f" ({message})")


def test_a_worker_names_a_scheduler_that_speaks_no_tls(world: World) -> None:
    said = named(world.context(Side.CLIENT), b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9, Side.CLIENT)

    assert said.startswith("TLS_SERVER_PLAINTEXT: "), said


def test_the_scheduler_names_an_old_digest(world: World, tmp_path: Path) -> None:
    # Nothing else still signs with SHA-1.
    needs_tool("openssl")
    peer = foreign(world, Side.CLIENT, made.signed_with_sha_1(tmp_path, world.root), tmp_path)

    said = named(world.context(Side.SERVER), peer, Side.SERVER)

    assert said.startswith("TLS_SIG_WEAK: "), said


def test_a_list_that_is_no_newer_is_taken_and_said(world: World) -> None:
    place = world.places[Side.SERVER]
    place.lists(world.list_of(number=5))
    channel = Channel(place.config, Side.SERVER, PASSWORD)
    notes = {}
    for number, revoked in ((4, [world.client]), (6, []), (6, [world.client])):
        place.lists(world.list_of(*revoked, number=number))
        notes[number, bool(revoked)] = [note.text for note in channel.reload(NOW) if "NOT_NEWER" in note.text]

    assert notes[6, False] == []
    assert [text for key in ((4, True), (6, True)) for text in notes[key]] == [
        "TLS_CRL_NOT_NEWER: the list of CN=root has number 4, the one before had 5",
        "TLS_CRL_NOT_NEWER: the list of CN=root has number 6, the one before had 6",
    ]
    assert "TLS_CERT_REVOKED" in named(
        channel.context, foreign(world, Side.CLIENT, world.client, place.directory), Side.SERVER
    ), "a list that is no newer counts all the same"


def test_who_belongs_is_through(world: World, tmp_path: Path) -> None:
    assert named(world.context(Side.SERVER), _own(world, tmp_path), Side.SERVER) == ""
