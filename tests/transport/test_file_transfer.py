"""Files of checkpoints between nodes: whole, resumed, refused, too slow, and only for those who belong."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from recovery.core.principals import PrincipalKind
from recovery.tls.channel import Channel
from recovery.tls.side import Side
from recovery.transport.access import Access
from recovery.transport.file_client import PIECE_BYTES, FileClient, Patience, SourceError
from recovery.transport.file_server import FileServer
from recovery.transport.job_token import Authenticator, Caller, JobToken
from recovery.transport.served import Served
from tests.faults.fault_proxy import FaultProxy
from tests.tls.test_contexts import World
from tests.transport.test_job_token import SECRET, VIEWER, WORKER
from tests.transport.test_wire_tls import channel as channel_of
from tests.transport.wire import HOST, WAIT_S, LoopTime, in_thread, plain_socket, run, until

DIGEST, OTHER = "ab" * 32, "cd" * 32
SMALL, LARGE = b"the first file", random.Random(1).randbytes(5 * PIECE_BYTES + 17)
HUGE = bytes(range(256)) * 128 * 1024
"""More than the sockets between two processes take: whoever sends it waits for whoever reads."""
MANIFEST = b'{"manifest": {}, "manifest_sha256": ""}'
HASTY = Patience(window_s=WAIT_S, window_bytes=64 * 1024, busy_s=WAIT_S)
"""A holder is given up for what it does, not for what the machine beside it does: only a test of time sets the clock forward."""


class Held:
    """What one node holds."""

    def __init__(self, directory: Path) -> None:
        self.files = (directory / "small.ckpt", directory / "large.ckpt")
        for path, content in zip(self.files, (SMALL, LARGE), strict=True):
            path.write_bytes(content)

    def find(self, digest: str) -> Served | None:
        return Served(MANIFEST, self.files) if digest == DIGEST else None


@pytest.fixture
def held(tmp_path: Path) -> Held:
    return Held(tmp_path)


@contextlib.asynccontextmanager
async def holder(
    held: Held, token: str | None = SECRET, channel: Channel | None = None
) -> AsyncIterator[int]:
    server = FileServer(held.find, authenticator=Authenticator(JobToken.of(token)), channel=channel)
    port = await server.start(HOST)
    try:
        yield port
    finally:
        await server.stop()


def client(port: int, access: Access | None = None, patience: Patience = HASTY) -> FileClient:
    return FileClient(f"{HOST}:{port}", access if access is not None else Access(WORKER), patience)


class Taken:
    """The receiving side: what came; `after` is called once, behind the first piece."""

    def __init__(self, after: Callable[[], None] = lambda: None) -> None:
        self.content = b""
        self._after: Callable[[], None] | None = after

    async def __call__(self, piece: bytes) -> None:
        self.content += piece
        if self._after is not None:
            after, self._after = self._after, None
            await in_thread(after)


async def refusal(asked: Awaitable[object]) -> str:
    with pytest.raises(SourceError) as caught:
        await asked
    return caught.value.reason


# --- what is given ------------------------------------------------------------------------------------------------------


def test_a_manifest_and_its_files_arrive_whole(held: Held) -> None:
    async def main() -> None:
        small, large = Taken(), Taken()
        async with holder(held) as port, client(port) as asking:
            assert await asking.manifest(DIGEST, 1_000) == MANIFEST
            await asking.file(DIGEST, 0, len(SMALL), small)
            await asking.file(DIGEST, 1, len(LARGE), large)
        assert small.content == SMALL
        assert large.content == LARGE

    run(main())


def test_an_empty_file_needs_no_request(held: Held) -> None:
    async def main() -> None:
        async with client(1) as asking:
            await asking.file(DIGEST, 0, 0, Taken())

    run(main())


def test_a_transfer_that_is_cut_goes_on_where_it_stopped(held: Held) -> None:
    held.files[1].write_bytes(HUGE)

    async def main() -> None:
        async with holder(held) as port:
            with FaultProxy(port) as proxy:
                taken = Taken(proxy.cut)
                async with client(proxy.port) as asking:
                    await asking.file(DIGEST, 1, len(HUGE), taken)
                assert proxy.accepted > 1, "one connection, and one behind the cut"
        assert taken.content == HUGE

    run(main())


def test_a_holder_that_dies_in_the_middle_is_given_up(held: Held) -> None:
    held.files[1].write_bytes(HUGE)

    async def main() -> None:
        async with holder(held) as port:
            with FaultProxy(port) as proxy:
                taken = Taken(proxy.down)
                async with client(proxy.port) as asking:
                    reason = await refusal(asking.file(DIGEST, 1, len(HUGE), taken))
        assert taken.content == HUGE[: len(taken.content)] != HUGE
        assert reason

    run(main())


def test_a_disk_that_is_full_is_no_fault_of_the_holder(held: Held) -> None:
    async def full(_: bytes) -> None:
        raise OSError(28, "No space left on device")

    async def main() -> None:
        async with holder(held) as port, client(port) as asking:
            with pytest.raises(OSError, match="No space left"):
                await asking.file(DIGEST, 1, len(LARGE), full)

    run(main())


# --- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "caller",
    [
        pytest.param(Caller(PrincipalKind.NODE, "worker_0", JobToken("another-token-than-that")), id="token"),
        pytest.param(VIEWER, id="viewer"),
        pytest.param(Caller(PrincipalKind.NODE, "worker_0"), id="none"),
    ],
)
def test_strangers_get_nothing(held: Held, caller: Caller) -> None:
    async def main() -> None:
        taken = Taken()
        async with holder(held) as port, client(port, Access(caller)) as asking:
            reasons = [
                await refusal(asking.manifest(DIGEST, 1_000)),
                await refusal(asking.file(DIGEST, 0, len(SMALL), taken)),
            ]
        assert not taken.content
        assert set(reasons) <= {
            "it asks for the job's token, and this process has none or proved it too late",
            "it does not take this process for a node of its job",
        }

    run(main())


def test_who_does_not_know_the_token_is_no_holder(held: Held) -> None:
    """It gives challenges and bytes, but no proof."""

    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            body = b"7f.a challenge"
            for _ in range(2):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                body = SMALL

        async with raw_server(serve) as port, client(port) as asking:
            assert "does not prove" in await refusal(asking.file(DIGEST, 0, len(SMALL), Taken()))

    run(main())


def test_what_a_node_does_not_hold_it_says(held: Held) -> None:
    async def main() -> None:
        async with holder(held) as port, client(port) as asking:
            assert await refusal(asking.manifest(OTHER, 1_000)) == "it does not hold it"
            assert await refusal(asking.file(DIGEST, 2, 5, Taken())) == "it does not hold it"
            held.files[0].unlink()
            assert await refusal(asking.file(DIGEST, 0, 5, Taken())) == "it does not hold it"

    run(main())


@pytest.mark.parametrize(
    "path", ["/", "/checkpoints/", f"/checkpoints/{DIGEST}/files/../manifest", "/status"]
)
def test_there_are_no_other_paths(held: Held, path: str) -> None:
    async def main() -> None:
        async with holder(held, None) as port:
            answer = await in_thread(lambda: asked(port, path))
        assert answer.startswith(b"HTTP/1.1 404 ")

    run(main())


def test_browsers_get_nothing(held: Held) -> None:
    async def main() -> None:
        async with holder(held, None) as port:
            answer = await in_thread(
                lambda: asked(port, f"/checkpoints/{DIGEST}/manifest", b"Origin: http://x\r\n")
            )
        assert answer.startswith(b"HTTP/1.1 403 ")

    run(main())


@pytest.mark.parametrize("said", [len(SMALL) - 1, len(SMALL) + 1])
def test_a_file_of_another_size_is_not_read(held: Held, said: int) -> None:
    async def main() -> None:
        taken = Taken()
        async with holder(held) as port, client(port) as asking:
            assert "it offers 14 bytes" in await refusal(asking.file(DIGEST, 0, said, taken))
        assert not taken.content

    run(main())


def test_a_manifest_that_is_none_is_not_read_to_its_end(held: Held) -> None:
    async def main() -> None:
        async with holder(held) as port, client(port) as asking:
            assert "longer than 10 bytes" in await refusal(asking.manifest(DIGEST, 10))

    run(main())


# --- time ---------------------------------------------------------------------------------------------------------------


def asked(port: int, path: str, header: bytes = b"") -> bytes:
    with plain_socket(port) as peer:
        peer.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n" % (path.encode(), header))
        return peer.recv(4_096)


@contextlib.asynccontextmanager
async def raw_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    serving: list[asyncio.Task[None]] = []

    async def noted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.append(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(noted, HOST, 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await asyncio.wait(serving, timeout=WAIT_S)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the pieces that clients have read."""
    sizes: list[int] = []
    readany = aiohttp.StreamReader.readany

    async def noted(stream: aiohttp.StreamReader) -> bytes:
        piece = await readany(stream)
        sizes.append(len(piece))
        return piece

    monkeypatch.setattr(aiohttp.StreamReader, "readany", noted)
    return sizes


def test_a_slow_holder_is_given_up(heard: list[int]) -> None:
    async def main() -> None:
        loop_time, sent = LoopTime(), 0

        async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            nonlocal sent
            gone = asyncio.ensure_future(reader.read(1))
            while not gone.done() and sent < 10:
                writer.write(b"x")
                sent += 1
                await until(lambda sent=sent: gone.done() or sum(heard) == sent, "a byte")  # type: ignore[misc]  # bound now
                # Something comes in each of the halves, so that it is not taken for dead.
                await loop_time.forward(HASTY.window_s / 2)

        async with raw_server(trickle) as port, client(port, Access()) as asking:
            reason = await refusal(asking.file(DIGEST, 0, 1_000_000, Taken()))
        assert reason == f"it is too slow: {sum(heard)} bytes in {WAIT_S:g} s"

    run(main())
    assert 2 <= len(heard) <= 4


def test_a_holder_that_stops_is_given_up() -> None:
    async def main() -> None:
        async def stop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            assert not await reader.read(1), "it says nothing, and hangs up"

        async with (
            raw_server(stop) as port,
            client(port, Access(), HASTY._replace(window_s=0.3)) as asking,
        ):
            reason = await refusal(asking.file(DIGEST, 0, 1_000_000, Taken()))
        assert reason.startswith("nothing came")

    run(main())


# --- the secure channel -------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_over_tls_too(held: Held, world: World) -> None:
    async def main() -> None:
        taken = Taken()
        access = Access(WORKER, channel_of(world, Side.CLIENT))
        async with (
            holder(held, channel=channel_of(world, Side.SERVER)) as port,
            client(port, access) as asking,
        ):
            assert await asking.manifest(DIGEST, 1_000) == MANIFEST
            await asking.file(DIGEST, 1, len(LARGE), taken)
        assert taken.content == LARGE

    run(main())


def test_without_tls_where_the_holder_has_it(held: Held, world: World) -> None:
    async def main() -> None:
        async with holder(held, channel=channel_of(world, Side.SERVER)) as port, client(port) as asking:
            await refusal(asking.manifest(DIGEST, 1_000))

    run(main())
