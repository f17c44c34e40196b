"""What the tests of the wire share: messages to send, a receiver that remembers, waits with a bound."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from recovery.core.ids import ConnectionId, Generation, Incarnation, NodeId, RequestId, ResumeToken, RunId
from recovery.core.messages import (
    PROTOCOL_VERSION,
    Admitted,
    FromNode,
    FromScheduler,
    Heartbeat,
    HeartbeatAck,
    Register,
    Role,
)
from recovery.core.rules import Rules
from recovery.transport.client import Client
from recovery.transport.server import Server

HOST = "127.0.0.1"
RULES = Rules(worker_count=1)
WAIT_S = 60.0
"""Longest wait of a test for something that takes milliseconds."""

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a test's loop; an error that nobody handled fails the test instead of being printed."""
    unhandled: list[dict[str, Any]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        result = await main
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left behind: {left}"
        return result

    result = asyncio.run(watched())
    assert not unhandled, f"errors that nobody handled: {unhandled}"
    return result


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait for a condition, at most WAIT_S."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WAIT_S
    while not condition():
        assert loop.time() < deadline, f"waited {WAIT_S} s in vain: {what}"
        await asyncio.sleep(0.001)


def register(node: str = "worker_0", host: str = "") -> Register:
    return Register(
        request_id=RequestId("r-1"),
        protocol=PROTOCOL_VERSION,
        node_id=NodeId(node),
        role=Role.WORKER,
        host=host,
        pid=1,
        worker_count=1,
        server_count=0,
        recovery_enabled=True,
    )


def heartbeat(sequence: int = 1) -> Heartbeat:
    return Heartbeat(sequence=sequence, generation=Generation(1), step=0)


def admitted(job: str = "job") -> Admitted:
    return Admitted(
        request_id=RequestId("r-1"),
        incarnation=Incarnation(1),
        token=ResumeToken("00" * 16),
        rank=None,
        job=job,
        run=RunId(1),
        scheduler_incarnation=Incarnation(1),
        resumed=False,
    )


class Receiver:
    """The scheduler's side: what came, from whom, and who was lost. Answers heartbeats; admits who registers while `admits` is set."""

    def __init__(self, rules: Rules = RULES, **options: Any) -> None:
        self.messages: list[tuple[ConnectionId, FromNode, str]] = []
        self.lost: list[tuple[ConnectionId, str]] = []
        self.admits = True
        self.server = Server(rules=rules, on_message=self._receive, on_lost=self._lose, **options)

    def _receive(self, connection: ConnectionId, message: FromNode, peer: str) -> None:
        self.messages.append((connection, message, peer))
        if isinstance(message, Register) and self.admits:
            self.server.admitted(connection)
            self.server.send(connection, admitted())
        elif isinstance(message, Heartbeat):
            self.server.send(connection, HeartbeatAck(sequence=message.sequence))

    def _lose(self, connection: ConnectionId, reason: str) -> None:
        self.lost.append((connection, reason))


class Node:
    """A worker's client and what it received."""

    def __init__(self, port: int, rules: Rules = RULES) -> None:
        self.messages: list[FromScheduler] = []
        self.lost: list[str] = []
        self.client = Client(
            host=HOST, port=port, rules=rules, on_message=self.messages.append, on_lost=self.lost.append
        )

    async def join(self, name: str = "worker_0") -> None:
        """Connect, register, wait for the admission."""
        await self.client.connect(WAIT_S)
        self.client.send(register(name))
        await until(lambda: self.messages, "admission")


@contextlib.asynccontextmanager
async def serving(rules: Rules = RULES, **options: Any) -> AsyncIterator[tuple[Receiver, int]]:
    """A server on a free port, stopped at the end."""
    receiver = Receiver(rules, **options)
    port = await receiver.server.start(HOST, 0)
    try:
        yield receiver, port
    finally:
        await receiver.server.stop()


def plain_socket(port: int, source: str = HOST) -> socket.socket:
    """A TCP connection without any protocol, from an address of the loopback network."""
    made = socket.socket()
    made.bind((source, 0))
    made.settimeout(WAIT_S)
    made.connect((HOST, port))
    return made


HANDSHAKE = (
    b"GET /cluster HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def masked_frame(payload: bytes, opcode: int = 2) -> bytes:
    """A client's WebSocket frame with a zero mask."""
    if len(payload) < 126:
        size = bytes([0x80 | len(payload)])
    elif len(payload) < 65_536:
        size = bytes([0x80 | 126]) + len(payload).to_bytes(2, "big")
    else:
        size = bytes([0x80 | 127]) + len(payload).to_bytes(8, "big")
    return bytes([0x80 | opcode]) + size + bytes(4) + payload


class LoopTime:
    """The running loop's clock, which a test sets forward: minutes of silence pass at once."""

    def __init__(self) -> None:
        """Take the clock over. It goes on, and is right until it is set."""
        loop = asyncio.get_running_loop()
        now, self._ahead_s = loop.time, 0.0
        loop.time = lambda: now() + self._ahead_s  # type: ignore[method-assign]  # every timer of a loop asks it

    async def forward(self, seconds: float) -> None:
        """Let so much time pass, and what is due by then happen."""
        self._ahead_s += seconds
        # A turn that finds what is due, and one that does it.
        for _ in range(3):
            await asyncio.sleep(0)


async def in_thread(work: Callable[[], T]) -> T:
    """Blocking socket work beside the loop."""
    return await asyncio.to_thread(work)
