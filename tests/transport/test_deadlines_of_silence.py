"""The deadline of a peer that says nothing is set when its socket is accepted; that it ends is tested beside the other peers."""

from __future__ import annotations

import asyncio

import pytest

from recovery.transport import connection_limiter, tls_acceptor
from tests.tls.test_contexts import World
from tests.transport.test_tls_handshakes import acceptor_of
from tests.transport.test_wire_tls import secure, world
from tests.transport.wire import in_thread, plain_socket, run, serving, until

__all__ = ["world"]

_LIMIT_S = 600.0
"""Nothing reaches it."""


def test_a_peer_without_a_message_has_the_deadline_of_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limiter, "FIRST_MESSAGE_S", _LIMIT_S)

    async def main() -> None:
        async with serving() as (receiver, port):
            limiter = receiver.server._limiter
            assert limiter is not None
            with await in_thread(lambda: plain_socket(port)):
                await until(lambda: limiter._accepted)
                [accepted] = limiter._accepted.values()
                assert _is_within(accepted.deadline)

    run(main())


def test_a_peer_without_a_handshake_has_the_deadline_of_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_acceptor, "HANDSHAKE_S", _LIMIT_S)

    async def main() -> None:
        async with secure(world) as (receiver, port):
            acceptor = acceptor_of(receiver)
            with await in_thread(lambda: plain_socket(port)):
                await until(lambda: acceptor._count)
                [shaking] = [one for those in acceptor._shaking.values() for one in those]
                assert _is_within(shaking._deadline)

    run(main())


def _is_within(deadline: asyncio.TimerHandle | None) -> bool:
    """Is it set, and not further away than the limit?"""
    now_s = asyncio.get_running_loop().time()
    return deadline is not None and not deadline.cancelled() and deadline.when() <= now_s + _LIMIT_S
