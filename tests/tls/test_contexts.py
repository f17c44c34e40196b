"""Real handshakes over a socket pair: who is let in, who is not, and what the key leaves behind."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
import warnings
from pathlib import Path

import pytest

from recovery.errors import ChannelFileError, ChannelSettingError
from recovery.tls import config_file, material
from recovery.tls.contexts import context_of
from recovery.tls.side import Side
from tests.open_files import open_files
from tests.tls import made
from tests.tls.made import CLIENT, PASSWORD, SERVER, Place

NOW = datetime.datetime.now(datetime.timezone.utc)
DAY = datetime.timedelta(days=1)
WAIT_S = 30.0


def signed(name: str, issuer: made.Pair | None = None, **how: object) -> made.Pair:
    """A pair that is valid today: OpenSSL asks no test for the time."""
    return made.signed(name, issuer, **{"begin": NOW - DAY, "end": NOW + 30 * DAY, **how})  # type: ignore[arg-type]  # as `made.signed` names them


class World:
    """One authority, a scheduler's directory and a worker's."""

    def __init__(self, directory: Path) -> None:
        self.root = signed("root", authority=True)
        self.server = signed("server", self.root, usages=(SERVER,))
        self.client = signed("client", self.root, usages=(CLIENT,), san=("ft-node:w0",))
        self.places = {}
        for side, pair in ((Side.SERVER, self.server), (Side.CLIENT, self.client)):
            (directory / side.value).mkdir(mode=0o700)
            place = self.places[side] = Place(directory / side.value)
            place.put("ca.crt", self.root.pem())
            place.own(pair)

    def list_of(self, *revoked: made.Pair, number: int = 1) -> bytes:
        return made.crl_pem(made.crl(self.root, revoked, number=number, begin=NOW - DAY, end=NOW + DAY))

    def context(self, side: Side) -> ssl.SSLContext:
        return context_of(
            material.load(config_file.read_config_file(self.places[side].config), side, PASSWORD, NOW)
        )


def shake(server: ssl.SSLContext, client: ssl.SSLContext, name: str = "127.0.0.1") -> tuple[str, str]:
    """What each side says: `ok`, or the reason of OpenSSL."""
    here, there = socket.socketpair()
    said = {}

    def serve() -> None:
        try:
            with server.wrap_socket(there, server_side=True) as stream:
                stream.sendall(b"in")
                said["server"] = "ok"
        except ssl.SSLCertVerificationError as error:
            said["server"] = error.verify_message
        except OSError as error:
            said["server"] = str(getattr(error, "reason", "") or error)

    for each in (here, there):
        each.settimeout(WAIT_S)
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(here, server_hostname=name) as stream:
            # With TLS 1.3 the server judges the client's certificate after the client is through.
            said["client"] = "ok" if stream.recv(2) == b"in" else "closed"
    except ssl.SSLCertVerificationError as error:
        said["client"] = error.verify_message
    except OSError as error:
        said["client"] = str(getattr(error, "reason", "") or error)
    here.close()
    thread.join(WAIT_S)
    there.close()
    return said["server"], said["client"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_sides_know_each_other(world: World, version: ssl.TLSVersion) -> None:
    client = world.context(Side.CLIENT)
    client.maximum_version = version

    assert shake(world.context(Side.SERVER), client) == ("ok", "ok")


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_the_scheduler_is_checked_for_its_name(world: World, name: str) -> None:
    assert shake(world.context(Side.SERVER), world.context(Side.CLIENT), name)[1] == "ok"


def test_a_scheduler_of_another_name_is_refused(world: World) -> None:
    _, client = shake(world.context(Side.SERVER), world.context(Side.CLIENT), "10.0.0.1")

    assert client == "IP address mismatch, certificate is not valid for '10.0.0.1'."


def test_a_client_without_a_certificate_is_refused(world: World) -> None:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=world.root.pem().decode())

    server, found = shake(world.context(Side.SERVER), client)
    assert server == "PEER_DID_NOT_RETURN_A_CERTIFICATE"
    assert found != "ok"


def test_a_client_of_another_authority_of_the_same_name_is_refused(world: World) -> None:
    other = signed("root", authority=True)
    place = world.places[Side.CLIENT]
    place.own(signed("client", other, usages=(CLIENT,)))
    place.put("ca.crt", world.root.pem() + other.pem())

    server, client = shake(world.context(Side.SERVER), world.context(Side.CLIENT))
    assert "certificate" in server
    assert client != "ok"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_revoked_client_is_refused(world: World, version: ssl.TLSVersion) -> None:
    world.places[Side.SERVER].lists(world.list_of(world.client))
    client = world.context(Side.CLIENT)
    client.maximum_version = version

    server, found = shake(world.context(Side.SERVER), client)
    assert server == "certificate revoked"
    assert found != "ok"


def test_a_revoked_scheduler_is_refused(world: World) -> None:
    world.places[Side.CLIENT].lists(world.list_of(world.server))

    assert shake(world.context(Side.SERVER), world.context(Side.CLIENT))[1] == "certificate revoked"


def test_a_client_below_a_revoked_authority_is_refused(world: World) -> None:
    between = signed("between", world.root, authority=True)
    client = signed("below", between, usages=(CLIENT,))
    world.places[Side.CLIENT].own(client, others=(between,))
    lists = made.crl(between, begin=NOW - DAY, end=NOW + DAY)
    world.places[Side.SERVER].put("ca.crt", world.root.pem() + between.pem())
    world.places[Side.SERVER].lists(world.list_of(between) + made.crl_pem(lists))

    assert shake(world.context(Side.SERVER), world.context(Side.CLIENT))[0] == "certificate revoked"


def test_a_peer_that_offers_tls_1_1_at_most_is_refused(world: World) -> None:
    client = world.context(Side.CLIENT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        client.minimum_version = ssl.TLSVersion.TLSv1
        client.maximum_version = ssl.TLSVersion.TLSv1_1
    client.set_ciphers("ALL:@SECLEVEL=0")

    assert shake(world.context(Side.SERVER), client)[0] == "UNSUPPORTED_PROTOCOL"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_session_is_taken_up_again(world: World, version: ssl.TLSVersion) -> None:
    server, client = world.context(Side.SERVER), world.context(Side.CLIENT)
    client.maximum_version = version
    shake(server, client)

    assert server.session_stats()["hits"] == 0
    assert server.options & ssl.OP_NO_TICKET
    assert server.num_tickets == 0


def test_only_the_suites_of_the_list_are_offered(world: World) -> None:
    world.places[Side.SERVER].write_config(cipher_list="ECDHE-ECDSA-AES256-GCM-SHA384")
    names = {one["name"] for one in world.context(Side.SERVER).get_ciphers()}

    assert {name for name in names if not name.startswith("TLS_")} == {"ECDHE-ECDSA-AES256-GCM-SHA384"}


def test_neither_key_nor_descriptor_is_left_behind(world: World) -> None:
    before = open_files()
    for side in Side:
        world.context(side)

    assert not open_files() - before


def test_a_scheduler_without_a_name_to_check_is_refused(world: World) -> None:
    files = config_file.read_config_file(world.places[Side.CLIENT].config)

    assert files.name_to_check("10.0.0.1") == "10.0.0.1"
    with pytest.raises(ChannelSettingError, match="CONFIG_HOST_EMPTY"):
        files.name_to_check("")
    world.places[Side.CLIENT].write_config(expected_hostname="scheduler.example")
    named = config_file.read_config_file(world.places[Side.CLIENT].config)
    assert named.name_to_check("10.0.0.1") == "scheduler.example"


def test_a_certificate_that_only_openssl_refuses_is_named(world: World) -> None:
    world.places[Side.SERVER].own(signed("useless", world.root, usages=(SERVER,), digital_signature=False))
    with pytest.raises(ChannelFileError, match="P12_FORMAT") as caught:
        world.context(Side.SERVER)
    assert "(server_cert_path)" in str(caught.value)
    assert "OpenSSL does not take what is in it" in str(caught.value)
