"""Who does not know the job's token is nobody: no message of it is heard, no view is shown, and no proof is taken twice."""

from __future__ import annotations

import asyncio
import base64
import copy
import hashlib
import http.client
import pickle
import socket
from functools import partial

import pytest

from recovery import clock
from recovery.core.ids import NodeId
from recovery.core.messages import Exited, FromNode
from recovery.core.principals import AuthMethod, Principal, PrincipalKind
from recovery.transport import inspection_client, job_token
from recovery.transport.access import Access
from recovery.transport.client import Client, ConnectError
from recovery.transport.codec import encode
from recovery.transport.inspection_client import NoAnswerError
from recovery.transport.inspection_server import Inspection, json_route
from recovery.transport.job_token import Authenticator, Caller, Denied, JobToken, Proven
from tests.faults.fault_proxy import FaultProxy
from tests.transport.wire import (
    HANDSHAKE,
    HOST,
    RULES,
    WAIT_S,
    heartbeat,
    in_thread,
    masked_frame,
    plain_socket,
    register,
    run,
    serving,
    until,
)

SECRET = "a-token-that-nobody-guesses"
WORKER = Caller(PrincipalKind.NODE, "worker_0", JobToken(SECRET))
VIEWER = Caller(PrincipalKind.VIEWER, "", JobToken(SECRET))
VIEWS = Inspection(
    routes=(
        ("/status", json_route(lambda: {"nodes": []})),
        ("/events", json_route(lambda: ["/home/user/secret.py"])),
    ),
    actions=(("/act", lambda body: (202, {"begun": 1})),),
)


def authenticator(text: str = SECRET) -> Authenticator:
    return Authenticator(JobToken(text))


def client(port: int, caller: Caller | None, host: str = HOST) -> Client:
    return Client(
        host=host,
        port=port,
        rules=RULES,
        on_message=lambda _: None,
        on_lost=lambda _: None,
        access=Access(caller),
    )


def get(port: int, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=WAIT_S)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


# --- the exchange -----------------------------------------------------------------------------------------------------------


def test_a_proof_holds_once_for_what_it_was_made_for() -> None:
    it = authenticator()
    answer = WORKER.answer(it.challenge(), "GET", "/cluster")
    proven = it.look_at(answer.headers, "GET", "/cluster")
    assert isinstance(proven, Proven)
    assert proven.principal == Principal(kind=PrincipalKind.NODE, name="worker_0", known=AuthMethod.TOKEN)
    assert answer.holds(proven.headers), "the scheduler proves the same"
    again = it.look_at(answer.headers, "GET", "/cluster")
    assert isinstance(again, Denied)
    assert again.status == 401


@pytest.mark.parametrize("changed", ["path", "method", "who", "body", "proof", "challenge", "nonce"])
def test_a_proof_holds_for_nothing_else(changed: str) -> None:
    it = authenticator()
    headers = dict(WORKER.answer(it.challenge(), "POST", "/act", b"{}").headers)
    method, path, body = "POST", "/act", b"{}"
    scheme, challenge, nonce, proof = headers["Authorization"].split()
    if changed == "path":
        path = "/cluster"
    elif changed == "method":
        method = "GET"
    elif changed == "body":
        body = b'{"target": "worker_0"}'
    elif changed == "who":
        headers["Recovery-As"] = "node worker_1"
    elif changed == "proof":
        proof = ("0" if proof[0] != "0" else "1") + proof[1:]
    elif changed == "challenge":
        challenge = authenticator().challenge()
    else:
        nonce = nonce[::-1] + "0"
    headers["Authorization"] = f"{scheme} {challenge} {nonce} {proof}"
    assert isinstance(it.look_at(headers, method, path, body), Denied)


def test_a_challenge_ends_and_what_was_answered_is_forgotten_then(monkeypatch: pytest.MonkeyPatch) -> None:
    it, began_ms = authenticator(), clock.monotonic_ms()
    for _ in range(50):
        assert isinstance(it.look_at(WORKER.answer(it.challenge(), "GET", "/x").headers, "GET", "/x"), Proven)
    late = WORKER.answer(it.challenge(), "GET", "/x")
    monkeypatch.setattr(clock, "monotonic_ms", lambda: began_ms + 10 * job_token.CHALLENGE_MS)
    assert isinstance(it.look_at(late.headers, "GET", "/x"), Denied)
    assert isinstance(it.look_at(WORKER.answer(it.challenge(), "GET", "/x").headers, "GET", "/x"), Proven)
    assert len(it._used) == 1


@pytest.mark.parametrize(
    "given",
    [
        "",
        "x",
        "Basic a b c",
        f"{job_token.SCHEME} a b",
        f"{job_token.SCHEME} é é é",
        f"{job_token.SCHEME} . . .",
    ],
)
def test_garbage_proves_nothing(given: str) -> None:
    assert isinstance(
        authenticator().look_at({"Authorization": given, "Recovery-As": "viewer"}, "GET", "/status"), Denied
    )


@pytest.mark.parametrize(
    "who", ["", "node", "node ../x", "node a\nb", "admin", "viewer x", "launcher a b", "scheduler sched"]
)
def test_whoever_knows_the_token_must_still_be_something(who: str) -> None:
    it = authenticator()
    caller = copy.copy(WORKER)
    caller.who = who
    denied = it.look_at(caller.answer(it.challenge(), "GET", "/cluster").headers, "GET", "/cluster")
    assert isinstance(denied, Denied)
    assert denied.status == 403


def test_another_token_proves_nothing_to_either_side() -> None:
    other = Caller(PrincipalKind.NODE, "worker_0", JobToken("another-token-than-that"))
    it = authenticator()
    answer = other.answer(it.challenge(), "GET", "/cluster")
    denied = it.look_at(answer.headers, "GET", "/cluster")
    assert isinstance(denied, Denied)
    assert denied.status == 403
    assert "MS_RECOVERY_PATH" in denied.reason
    assert SECRET not in denied.reason
    assert not answer.holds({})
    assert not answer.holds({"Recovery-Proof": "é"})


def test_a_token_prints_as_nothing_and_is_not_copied_into_anything() -> None:
    token = JobToken(SECRET)
    assert SECRET not in f"{token!r} {token} {[token]} {WORKER.answer('c', 'GET', '/')}"
    with pytest.raises(TypeError):
        pickle.dumps(token)


# --- on the port ------------------------------------------------------------------------------------------------------------


def test_a_process_with_the_token_is_who_it_says_before_its_first_message() -> None:
    async def main() -> None:
        async with serving(authenticator=authenticator()) as (receiver, port):
            one = client(port, WORKER)
            await one.connect(WAIT_S)
            one.send(register())
            await until(lambda: receiver.messages)
            [(connection, message, _)] = receiver.messages
            assert message == register()
            assert receiver.server.principal(connection) == Principal(
                kind=PrincipalKind.NODE, name="worker_0", known=AuthMethod.TOKEN
            )
            await one.close()

    run(main())


def test_over_a_wire_that_drips_a_process_proves_itself_all_the_same() -> None:
    """Its challenge comes in pieces."""

    async def main() -> None:
        async with serving(authenticator=authenticator()) as (receiver, port):
            with FaultProxy(port) as wire:
                wire.drip(16)
                wire.delay(0.005)
                one = client(wire.port, WORKER)
                await one.connect(30)
                one.send(register())
                await until(lambda: receiver.messages)
                await one.close()

    run(main())


@pytest.mark.parametrize(
    ("caller", "why"),
    [
        (None, "has none"),
        (Caller(PrincipalKind.NODE, "worker_0", JobToken("another-token-than-that")), "is another one"),
        (Caller(PrincipalKind.VIEWER, "", JobToken(SECRET)), "does not let this process in"),
    ],
)
def test_who_does_not_belong_gets_no_connection_and_is_told_why(caller: Caller | None, why: str) -> None:
    async def main() -> None:
        async with serving(authenticator=authenticator()) as (receiver, port):
            with pytest.raises(ConnectError, match=why):
                await client(port, caller).connect(WAIT_S)
            assert receiver.messages == []

    run(main())


def test_a_worker_that_dials_another_name_is_told_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _, *rest, **how: resolve(HOST, *rest, **how))

    async def main() -> None:
        known = Authenticator(None, frozenset({"the-scheduler"}))
        async with serving(authenticator=known) as (_, port):
            dialled = client(port, WORKER, host="node-0.example")
            for _ in range(3):
                with pytest.raises(ConnectError, match="not known by that host name") as caught:
                    await dialled.connect(WAIT_S)
                assert caught.value.not_let_in, "it counts as refused, or the worker would wait for good"

    run(main())
    assert caplog.text.count("event=dial_refused") == 1


def test_a_worker_with_a_token_follows_no_scheduler_that_proves_nothing() -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            with pytest.raises(ConnectError, match="no scheduler of this job"):
                await client(port, WORKER).connect(WAIT_S)
            assert receiver.messages == []

    run(main())


def test_a_scheduler_that_lets_everybody_in_without_knowing_the_token_is_found_out() -> None:
    """It gives a challenge, takes any answer, and has nothing to show for it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(line.split(": ")[1] for line in head.split("\r\n") if line.startswith("Sec-WebSocket-Key"))
        accept = base64.b64encode(_sha1(key)).decode()
        writer.write(
            f"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n".encode()
        )
        await reader.read()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, HOST, 0)
        async with server:
            with pytest.raises(ConnectError, match="does not prove"):
                await client(server.sockets[0].getsockname()[1], WORKER).connect(WAIT_S)

    asyncio.run(main())


def _sha1(key: str) -> bytes:
    return hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode(), usedforsecurity=False).digest()


@pytest.mark.parametrize(
    "message", [register(), heartbeat(), Exited(node_id=NodeId("worker_0"), pid=1, reason="", gives_up=True)]
)
def test_no_message_of_a_stranger_is_heard(message: FromNode) -> None:
    """It needs no client of ours: the upgrade itself is refused."""

    def attack(port: int) -> bytes:
        with plain_socket(port) as one:
            one.sendall(HANDSHAKE + masked_frame(encode(message)) * 100)
            heard = b""
            while piece := _received(one):
                heard += piece
            return heard

    async def main() -> None:
        async with serving(authenticator=authenticator()) as (receiver, port):
            heard = await in_thread(lambda: attack(port))
            assert heard.startswith(b"HTTP/1.1 401")
            assert receiver.messages == []
            assert len(receiver.server._connections) == 0

    run(main())


def _received(one: socket.socket) -> bytes:
    try:
        return one.recv(65_536)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    ("path", "status"), [("/healthz", 200), ("/status", 401), ("/events", 401), ("/nothing", 401), ("/", 401)]
)
def test_a_stranger_sees_nothing_but_that_somebody_is_alive(path: str, status: int) -> None:
    async def main() -> None:
        async with serving(authenticator=authenticator(), inspection=VIEWS) as (_, port):
            for method in ("GET", "POST", "HEAD"):
                found, body = await in_thread(partial(get, port, path, method=method))
                assert found == (status if path != "/healthz" or method != "POST" else 405)
                assert "secret" not in body
            assert (await in_thread(lambda: get(port, "/act", {"Content-Length": "0"}, "POST")))[0] == 401

    run(main())


def test_whoever_has_the_token_sees_and_acts() -> None:
    async def main() -> None:
        async with serving(authenticator=authenticator(), inspection=VIEWS) as (_, port):
            assert await inspection_client.ask(HOST, port, "/status", access=Access(VIEWER)) == {"nodes": []}
            assert await inspection_client.ask(HOST, port, "/act", post={"a": 1}, access=Access(VIEWER)) == {
                "begun": 1
            }
            with pytest.raises(NoAnswerError, match="has none"):
                await inspection_client.ask(HOST, port, "/status")

    run(main())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421),
        ("evil.example:8118", 421),
        ("", 421),
        ("127.0.0.1.evil.example", 421),
        ("127.0.0.1:8118", 200),
        ("[::1]:8118", 200),
        ("[::1]", 200),
        ("LOCALHOST:1", 200),
        ("node-0.", 200),
        ("Node-0:8118", 200),
    ],
)
def test_a_page_that_resolves_to_this_host_is_not_answered(host: str, status: int) -> None:
    async def main() -> None:
        async with serving(authenticator=Authenticator(None, frozenset({"node-0"})), inspection=VIEWS) as (
            _,
            port,
        ):
            assert (await in_thread(lambda: get(port, "/events", {"Host": host})))[0] == status
            assert (await in_thread(lambda: get(port, "/healthz", {"Host": host})))[0] == 200

    run(main())


def test_a_thousand_challenges_that_nobody_answers_cost_nothing() -> None:
    it = authenticator()
    for _ in range(1_000):
        it.challenge()
    assert it._used == {}


def test_strangers_do_not_keep_a_worker_out() -> None:
    async def main() -> None:
        async with serving(authenticator=authenticator()) as (receiver, port):
            strangers = [plain_socket(port) for _ in range(100)]
            for stranger in strangers:
                stranger.sendall(b"GET /challenge HTTP/1.1\r\nHost: x\r\n\r\n")
            one = client(port, WORKER)
            await one.connect(WAIT_S)
            one.send(register())
            await until(lambda: receiver.messages)
            await one.close()
            for stranger in strangers:
                stranger.close()

    run(main())
