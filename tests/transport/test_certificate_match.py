"""Whom a certificate names, beside whom the token or the first message does: a connection is one principal, or is refused."""

from __future__ import annotations

import pytest

from recovery.core.barrier_messages import StopJob
from recovery.core.ids import NodeId, RequestId
from recovery.core.messages import Admitted, Exited, Refused
from recovery.core.principals import AuthMethod, Principal, PrincipalKind
from recovery.tls.side import Side
from recovery.transport.access import Access
from recovery.transport.certificate_match import covers
from recovery.transport.job_token import Authenticator, Caller, JobToken
from tests.tls.made import CLIENT
from tests.tls.test_contexts import World, signed
from tests.transport.test_wire_tls import channel, node, refusal, secure, world
from tests.transport.wire import WAIT_S, Node, run, serving, until

__all__ = ["world"]


@pytest.mark.parametrize(
    ("names", "registers_as", "code"),
    [
        (("ft-node:w0",), "w1", "ID_CERT_MISMATCH"),
        (("ft-node:w0", "ft-role:worker"), "w1", "ID_CERT_MISMATCH"),
        (("ft-role:scheduler",), "w0", "ROLE_CERT_MISMATCH"),
        (("ft-role:viewer", "ft-node:w0"), "w0", "ROLE_CERT_MISMATCH"),
    ],
)
def test_a_certificate_that_names_somebody_else_is_refused_for_good(
    world: World, caplog: pytest.LogCaptureFixture, names: tuple[str, ...], registers_as: str, code: str
) -> None:
    async def main() -> None:
        async with secure(world) as (receiver, port):
            world.places[Side.CLIENT].own(signed("c", world.root, usages=(CLIENT,), san=names))
            worker = node(world, port)
            await worker.join(registers_as)
            [answer] = worker.messages
            assert isinstance(answer, Refused)
            assert (answer.code, answer.retry_after_ms) == (code, None)
            await until(lambda: worker.lost, "the end of the connection")
            assert receiver.messages == []

    run(main())
    assert code in caplog.text


@pytest.mark.parametrize(
    ("named", "node_id", "counts"),
    [
        ("1", "1", True),
        ("1", "1.2", True),
        ("1", "1.10", True),
        ("1", "10", False),
        ("1", "1.", False),
        ("1", "1.0", False),
        ("1", "1.02", False),
        ("1", "1.2.3", False),
        ("1", "1.a", False),
        ("1", "1.\u0662", False),
        ("1.2", "1", False),
        ("1.2", "1.3", False),
        ("1.2", "1.2.2", True),
        ("w", "w.2\n", False),
    ],
)
def test_a_certificate_counts_for_the_later_ids_of_its_place(named: str, node_id: str, counts: bool) -> None:
    assert covers(NodeId(named), NodeId(node_id)) is counts


def test_a_later_id_of_a_place_is_known_by_its_certificate_and_is_itself(world: World) -> None:
    async def main() -> None:
        async with secure(world) as (receiver, port):
            world.places[Side.CLIENT].own(signed("c", world.root, usages=(CLIENT,), san=("ft-node:w0",)))
            worker = node(world, port)
            await worker.join("w0.2")
            assert isinstance(worker.messages[0], Admitted)
            assert receiver.server.principal(receiver.messages[0][0]) == Principal(
                kind=PrincipalKind.NODE, name=NodeId("w0.2"), known=AuthMethod.CERTIFICATE
            )
            await worker.client.close()

    run(main())


@pytest.mark.parametrize(
    "names", [(), ("ft-node:w0",), ("ft-node:w0", "ft-role:worker"), ("ft-role:worker",)]
)
def test_a_certificate_that_names_it_or_nobody_is_taken(world: World, names: tuple[str, ...]) -> None:
    async def main() -> None:
        async with secure(world) as (_, port):
            world.places[Side.CLIENT].own(signed("c", world.root, usages=(CLIENT,), san=names))
            worker = node(world, port)
            await worker.join("w0")
            assert isinstance(worker.messages[0], Admitted)
            await worker.client.close()

    run(main())


def _dialling(world: World, port: int, caller: Caller | None) -> Node:
    made = node(world, port)
    made.client._access = Access(caller, made.client._access.channel)
    return made


@pytest.mark.parametrize(
    ("names", "known"),
    [
        ((), AuthMethod.TOKEN),
        (("ft-role:worker",), AuthMethod.TOKEN),
        (("ft-node:w0",), AuthMethod.CERTIFICATE),
        (("ft-node:w0", "ft-role:worker"), AuthMethod.CERTIFICATE),
    ],
)
def test_with_token_and_certificate_a_worker_is_one_principal(
    world: World, names: tuple[str, ...], known: AuthMethod
) -> None:
    async def main() -> None:
        world.places[Side.CLIENT].own(signed("c", world.root, usages=(CLIENT,), san=names))
        token = JobToken("t" * 16)
        found = channel(world, Side.SERVER)
        async with serving(channel=found, authenticator=Authenticator(token)) as (receiver, port):
            worker = _dialling(world, port, Caller(PrincipalKind.NODE, "w0", token))
            await worker.join("w0")
            number = receiver.messages[0][0]
            assert receiver.server.principal(number) == Principal(
                kind=PrincipalKind.NODE, name=NodeId("w0"), known=known
            )
            await worker.client.close()

    run(main())


def test_a_certificate_does_not_make_up_for_a_token(world: World) -> None:
    async def main() -> None:
        token = JobToken("t" * 16)
        found = channel(world, Side.SERVER)
        async with serving(channel=found, authenticator=Authenticator(token)) as (receiver, port):
            assert "has none" in await refusal(_dialling(world, port, None))
            other = Caller(PrincipalKind.NODE, "w0", JobToken("u" * 16))
            assert "another one" in await refusal(_dialling(world, port, other))
            assert receiver.messages == []

    run(main())


def test_a_token_does_not_make_its_holder_another_node_than_its_certificate_names(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        world.places[Side.CLIENT].own(signed("c", world.root, usages=(CLIENT,), san=("ft-node:w0",)))
        token = JobToken("t" * 16)
        found = channel(world, Side.SERVER)
        async with serving(channel=found, authenticator=Authenticator(token)) as (receiver, port):
            worker = _dialling(world, port, Caller(PrincipalKind.NODE, "w1", token))
            await worker.join("w1")
            [answer] = worker.messages
            assert isinstance(answer, Refused)
            assert answer.code == "ID_CERT_MISMATCH"
            assert receiver.messages == []
            # What it has proven to be stays: the table of who may say what refuses this registration.
            other = _dialling(world, port, Caller(PrincipalKind.NODE, "w1", token))
            await other.join("w0")
            number = receiver.messages[0][0]
            assert receiver.server.principal(number) == Principal(
                kind=PrincipalKind.NODE, name=NodeId("w1"), known=AuthMethod.TOKEN
            )
            await other.client.close()

    run(main())
    assert "ID_CERT_MISMATCH" in caplog.text


@pytest.mark.parametrize(
    ("names", "about", "code"),
    [
        (("ft-role:worker",), "w0", "ROLE_CERT_MISMATCH"),
        (("ft-node:w0", "ft-role:worker"), "w0", "ROLE_CERT_MISMATCH"),
        (("ft-node:w0",), "w1", "ID_CERT_MISMATCH"),
        (("ft-node:w0",), "w0", ""),
        (("ft-role:launcher",), "w1", ""),
        ((), "w1", ""),
    ],
)
def test_a_certificate_restricts_whose_end_is_reported(
    world: World, caplog: pytest.LogCaptureFixture, names: tuple[str, ...], about: str, code: str
) -> None:
    async def main() -> None:
        world.places[Side.CLIENT].own(signed("c", world.root, usages=(CLIENT,), san=names))
        async with secure(world) as (receiver, port):
            launcher = node(world, port)
            await launcher.client.connect(WAIT_S)
            launcher.client.send(Exited(node_id=NodeId(about), pid=1, reason="exit code 1"))
            await until(lambda: receiver.messages or launcher.lost, "the report, or the end")
            assert len(receiver.messages) == (0 if code else 1)
            if receiver.messages:
                by_role = names == ("ft-role:launcher",)
                found = receiver.server.principal(receiver.messages[0][0])
                assert (found is not None and found.known is AuthMethod.CERTIFICATE) == by_role
            await launcher.client.close()

    run(main())
    assert ("CERT_MISMATCH" in caplog.text) == bool(code)
    assert code in caplog.text


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (("ft-node:w0",), "ID_CERT_MISMATCH"),
        (("ft-role:worker",), "ROLE_CERT_MISMATCH"),
        (("ft-role:launcher",), ""),
        ((), ""),
    ],
)
def test_the_certificate_of_a_node_does_not_ask_for_the_end_of_the_job(
    world: World, caplog: pytest.LogCaptureFixture, names: tuple[str, ...], code: str
) -> None:
    async def main() -> None:
        world.places[Side.CLIENT].own(signed("c", world.root, usages=(CLIENT,), san=names))
        async with secure(world) as (receiver, port):
            launcher = node(world, port)
            await launcher.client.connect(WAIT_S)
            launcher.client.send(StopJob(request_id=RequestId("s"), reason="SIGTERM", within_ms=1))
            await until(lambda: receiver.messages or launcher.lost, "the request, or the end")
            assert len(receiver.messages) == (0 if code else 1)
            await launcher.client.close()

    run(main())
    assert (f"{code}: the certificate" in caplog.text) == bool(code)
    assert ("asks for the end of the job, as only a launcher does" in caplog.text) == bool(code)
