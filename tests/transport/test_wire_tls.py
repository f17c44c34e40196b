"""Server and client over TLS: the same messages, only between those who belong."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest

from recovery import clock
from recovery.core.ids import NodeId
from recovery.core.principals import AuthMethod, Principal, PrincipalKind
from recovery.errors import ChannelSettingError
from recovery.tls.channel import Channel, Note
from recovery.tls.side import Side
from recovery.transport import peer_certificates
from recovery.transport.access import Access
from recovery.transport.client import Client, ConnectError
from tests.tls.made import CLIENT, PASSWORD, SERVER, p12
from tests.tls.test_contexts import World, signed
from tests.transport.wire import (
    HOST,
    RULES,
    WAIT_S,
    Node,
    Receiver,
    heartbeat,
    in_thread,
    plain_socket,
    run,
    serving,
    until,
)

NAMED = Principal(kind=PrincipalKind.NODE, name=NodeId("w0"), known=AuthMethod.CERTIFICATE)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def channel(world: World, side: Side) -> Channel:
    return Channel(world.places[side].config, side, PASSWORD)


@contextlib.asynccontextmanager
async def secure(world: World) -> AsyncIterator[tuple[Receiver, int]]:
    async with serving(channel=channel(world, Side.SERVER)) as found:
        yield found


def node(world: World, port: int) -> Node:
    made = Node(port)
    made.client = Client(
        host=HOST,
        port=port,
        rules=RULES,
        on_message=made.messages.append,
        on_lost=made.lost.append,
        access=Access(channel=channel(world, Side.CLIENT)),
    )
    return made


def test_a_node_joins_and_is_heard(world: World) -> None:
    async def main() -> None:
        async with secure(world) as (receiver, port):
            worker = node(world, port)
            await worker.join("w0")
            worker.client.send(heartbeat())
            await until(lambda: len(worker.messages) == 2, "the answer to a heartbeat")
            number = receiver.messages[0][0]
            assert receiver.server.principal(number) == NAMED
            await worker.client.close()

    run(main())


async def refusal(made: Node) -> str:
    with pytest.raises(ConnectError) as caught:
        await made.client.connect(WAIT_S)
    return caught.value.reason


def test_a_worker_of_another_authority_is_refused_on_both_sides(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with secure(world) as (receiver, port):
            other = signed("other", authority=True)
            world.places[Side.CLIENT].own(signed("c", other, usages=(CLIENT,)))
            world.places[Side.CLIENT].put("ca.crt", world.root.pem() + other.pem())
            assert (await refusal(node(world, port))).startswith("TLS_UNKNOWN_CA")
            await until(lambda: "TLS_UNKNOWN_CA" in caplog.text, "the scheduler's line")
            assert receiver.messages == []

    run(main())


def test_a_worker_that_speaks_no_tls_is_named_and_learns_why(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with secure(world) as (receiver, port):
            reason = await refusal(Node(port))
            assert "if it uses TLS, this process must too" in reason
            await until(lambda: "TLS_PEER_PLAINTEXT" in caplog.text, "the scheduler's line")
            assert receiver.messages == []

    run(main())


def test_a_worker_learns_that_the_scheduler_speaks_no_tls(world: World) -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            assert (await refusal(node(world, port))).startswith("TLS_SERVER_PLAINTEXT")
            assert receiver.messages == []

    run(main())


def test_a_scheduler_of_another_name_is_refused(world: World) -> None:
    async def main() -> None:
        world.places[Side.CLIENT].write_config(expected_hostname="scheduler.example")
        async with secure(world) as (_, port):
            assert (await refusal(node(world, port))).startswith("TLS_HOST_MISMATCH")

    run(main())


def test_the_expected_name_is_checked_in_place_of_the_address(world: World) -> None:
    async def main() -> None:
        world.places[Side.CLIENT].write_config(expected_hostname="localhost")
        async with secure(world) as (_, port):
            worker = node(world, port)
            await worker.join("w0")
            await worker.client.close()

    run(main())


def test_no_name_is_one_that_every_certificate_has(world: World) -> None:
    """What is left of "." without its dots is no name, and was not checked for."""
    world.server = signed("server", world.root, usages=(SERVER,), san=("10.9.9.9",))
    world.places[Side.SERVER].own(world.server)
    world.places[Side.CLIENT].write_config(expected_hostname=".")

    async def main() -> None:
        async with secure(world) as (_, port):
            with pytest.raises(ChannelSettingError, match="CONFIG_JSON"):
                await node(world, port).join("w0")

    run(main())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_worker_without_a_certificate_is_refused_and_learns_why(
    world: World, caplog: pytest.LogCaptureFixture, version: ssl.TLSVersion
) -> None:
    async def main() -> None:
        async with secure(world) as (receiver, port):
            worker = node(world, port)
            assert worker.client._access.channel is not None
            worker.client._access.channel.context = bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            bare.load_verify_locations(cadata=world.root.pem().decode())
            bare.maximum_version = version
            assert (await refusal(worker)).startswith("TLS_CLIENT_CERT_MISSING")
            await until(lambda: "TLS_CLIENT_CERT_MISSING" in caplog.text, "the scheduler's line")
            assert receiver.messages == []

    run(main())


def test_a_revoked_worker_is_dropped_and_cannot_come_back(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peer_certificates, "LOOK_S", 0.05)
    caplog.set_level(logging.INFO)
    server = world.places[Side.SERVER]
    server.lists(world.list_of(number=1))

    async def main() -> None:
        async with secure(world) as (receiver, port):
            good = signed("good", world.root, usages=(CLIENT,), san=())
            revoked, kept = node(world, port), None
            await revoked.join("w0")
            world.places[Side.CLIENT].own(good)
            kept = node(world, port)
            await kept.join("worker_1")
            server.lists(world.list_of(world.client, number=2))
            await until(lambda: revoked.lost, "the end of the revoked one")
            assert "TLS_CERT_REVOKED" in receiver.lost[0][1]
            # It would come with what lies in its file now.
            world.places[Side.CLIENT].own(world.client)
            assert (await refusal(revoked)).startswith("TLS_CERT_REVOKED")
            assert kept.lost == []
            assert kept.client.fileno is not None
            await kept.client.close()

    run(main())
    assert "event=tls_files_renewed" in caplog.text
    assert "event=tls_peer_dropped" in caplog.text


def test_a_look_that_fails_is_not_the_last(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peer_certificates, "LOOK_S", 0.05)
    server, looks, look = world.places[Side.SERVER], [0], Channel.reload
    server.lists(world.list_of(number=1))

    def failing(channel: Channel, now: datetime) -> list[Note]:
        looks[0] += 1
        if looks[0] == 1:
            message = "can't start new thread"
            raise RuntimeError(message)
        return look(channel, now)

    monkeypatch.setattr(Channel, "reload", failing)

    async def main() -> None:
        async with secure(world) as (_, port):
            revoked = node(world, port)
            await until(lambda: looks[0] > 1, "another look")
            await revoked.join("w0")
            server.lists(world.list_of(world.client, number=2))
            await until(lambda: revoked.lost, "the end of the revoked one")

    run(main())
    assert "event=tls_look_failed" in caplog.text


def test_new_files_are_used_without_a_restart(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peer_certificates, "LOOK_S", 0.05)
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with secure(world) as (_, port):
            before = node(world, port)
            await before.join("w0")
            other = signed("new root", authority=True)
            for side, place in world.places.items():
                place.put("ca.crt", world.root.pem() + other.pem())
                place.own(signed(f"new {side.value}", other))
            await until(lambda: "CN=new server" in caplog.text, "the new files")
            after = node(world, port)
            await after.join("worker_1")
            assert before.client.fileno is not None
            for each in (before, after):
                await each.client.close()

    run(main())


def test_a_worker_that_is_refused_says_why_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with secure(world) as (_, port):
            other = signed("other", authority=True)
            world.places[Side.CLIENT].own(signed("c", other, usages=(CLIENT,)))
            world.places[Side.CLIENT].put("ca.crt", world.root.pem() + other.pem())
            worker = node(world, port)
            for _ in range(3):
                await refusal(worker)

    run(main())
    assert caplog.text.count("event=dial_refused TLS_UNKNOWN_CA") == 1


def test_where_nobody_listens_no_python_object_is_shown(world: World) -> None:
    async def main() -> None:
        with socket.create_server((HOST, 0)) as closed:
            port = closed.getsockname()[1]
        reason = await refusal(node(world, port))
        assert reason.startswith(f"Cannot connect to host {HOST}:{port} [")

    run(main())


def test_files_named_by_relative_paths_are_found_again_by_a_script_that_goes_elsewhere(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = world.places[Side.CLIENT]
    place.write_config(server_cert_path="server.p12", client_cert_path="client.p12", ca_cert_path="ca.crt")
    monkeypatch.chdir(place.directory)
    made = Channel(place.config.relative_to(place.directory), Side.CLIENT, PASSWORD)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    place.own(signed("new client", world.root, usages=(CLIENT,)))

    notes = made.reload(clock.utc_now())

    assert [note.event for note in notes if note.event.startswith("tls_files")] == ["tls_files_renewed"], (
        notes
    )
    assert "CN=new client" in notes[0].text


@pytest.mark.parametrize("useless", [False, True])
def test_new_files_that_cannot_be_used_leave_the_old_ones(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, useless: bool
) -> None:
    monkeypatch.setattr(peer_certificates, "LOOK_S", 0.05)
    # Taken by us, and refused by OpenSSL: with it the watch over who is revoked ended.
    refused = p12(signed("useless", world.root, usages=(SERVER,), digital_signature=False))

    async def main() -> None:
        async with secure(world) as (_, port):
            world.places[Side.SERVER].put("server.p12", refused if useless else b"half a fi", 0o600)
            await until(lambda: "event=tls_files_refused P12_FORMAT" in caplog.text, "the refusal")
            worker = node(world, port)
            await worker.join("w0")
            await worker.client.close()

    run(main())
    assert caplog.text.count("tls_files_refused") == 1


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100, b"\x16\x03\x01\x40\x01\x01", b"SSH-2.0-x\r\n"]
)
def test_garbage_ends_one_connection_and_nothing_else(world: World, data: bytes) -> None:
    async def main() -> None:
        async with secure(world) as (receiver, port):

            def send() -> None:
                with plain_socket(port) as raw, contextlib.suppress(ConnectionError):
                    raw.sendall(data)
                    raw.shutdown(socket.SHUT_WR)
                    while raw.recv(1_000):
                        pass

            await in_thread(send)
            worker = node(world, port)
            await worker.join("w0")
            await worker.client.close()
            assert len(receiver.messages) == 1

    run(main())
