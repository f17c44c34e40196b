"""Contributions between real nodes: from whoever has them whole, and only whole ones."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.checkpoint import fetched, verify
from recovery.checkpoint.verify import Wanted
from recovery.core.copy_messages import FetchFault
from recovery.core.held import Source
from recovery.core.ids import NodeId, Rank, RunId
from recovery.core.principals import PrincipalKind
from recovery.transport.access import Access
from recovery.transport.file_client import Patience
from recovery.transport.job_token import Authenticator, Caller, JobToken
from recovery.worker import fetching
from recovery.worker.fetching import FetchRequest, FetchResult, NotFetchedError
from recovery.worker.file_exchange import FileExchange
from recovery.worker.held_copies import Copies
from tests.checkpoint.conftest import Save
from tests.faults.fault_proxy import FaultProxy
from tests.transport.wire import until

SECRET = "a-token-that-nobody-guesses"
RUN, RANK = RunId(1), Rank(1)
NAME = "train-1_7.ckpt"
CONTENT = random.Random(1).randbytes(3_000_000)
ACCESS = Access(Caller(PrincipalKind.NODE, "w9", JobToken(SECRET)))
WAIT_S = 60.0
HASTY = Patience(window_s=WAIT_S, window_bytes=1_000, busy_s=WAIT_S)


class Node:
    """A node that holds one copy."""

    def __init__(self, path: Path, secret: str = SECRET, content: bytes = CONTENT) -> None:
        self.path = path
        self.copies = Copies(path, "w0")
        self.directory = self.copies.directory("job-a", RUN, RANK)
        self.file = Save(self.directory)(NAME, content, rank=1, step=7)
        self.exchange = FileExchange(
            self.copies.served, lambda: Authenticator(JobToken(secret)), lambda: None
        )

    def close(self) -> None:
        self.exchange.close()

    def source(self, name: str = "") -> Source:
        return Source(node_id=NodeId(name or self.path.name), address=self.exchange.address("127.0.0.1"))

    def wanted(self) -> Wanted:
        found = verify.check(self.file)
        return Wanted(job="job-a", run=1, rank=1, world_size=2, step=7, digest=found.digest)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with contextlib.closing(Node(tmp_path / "a")) as made:
        yield made


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Node]:
    with contextlib.closing(Node(tmp_path / "b")) as made:
        yield made


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return Copies(tmp_path / "there", "w9").directory("job-a", RUN, RANK)


def task(node: Node, there: Path, *sources: Source) -> FetchRequest:
    return FetchRequest(node.wanted(), lambda: there, sources, ACCESS, lambda: True, HASTY)


def failures(node: Node, there: Path, *sources: Source) -> NotFetchedError:
    with pytest.raises(NotFetchedError) as caught:
        asyncio.run(fetching.fetch(task(node, there, *sources)))
    assert not list(there.glob(".*")), "nothing is left half fetched"
    assert not list(there.glob("*")), "nothing was published"
    return caught.value


def test_a_contribution_comes_whole(node: Node, there: Path) -> None:
    held = asyncio.run(fetching.fetch(task(node, there, node.source()))).checkpoint

    assert held.path == str(there / NAME)
    assert verify.check(there / NAME) == verify.check(node.file)
    assert (there / NAME).read_bytes() == CONTENT
    # It is here: nobody is asked again.
    assert asyncio.run(fetching.fetch(task(node, there))) == FetchResult(held, ())


def test_a_copy_that_is_damaged_at_rest_is_refused_and_another_holder_asked(
    node: Node, other: Node, there: Path
) -> None:
    node.file.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))

    error = failures(other, there, node.source())
    assert [(one.source.node_id, one.damaged) for one in error.faults] == [("a", True)]
    brought = asyncio.run(fetching.fetch(task(other, there, node.source(), other.source())))
    assert Path(brought.checkpoint.path).read_bytes() == CONTENT
    assert brought.faults == error.faults


@pytest.mark.parametrize("address", ["x" * 70 + ":1", "..:1", "\udcff:1", "[::1:1", "a b:1", ":1", "nowhere"])
def test_a_holder_that_has_no_address_is_passed_over(
    node: Node, other: Node, there: Path, address: str
) -> None:
    nobody = Source(node_id=NodeId("w1"), address=address)

    found = asyncio.run(fetching.fetch(task(node, there, nobody, node.source())))

    assert [fault.source for fault in found.faults] == [nobody]


def test_a_holder_whose_proof_is_no_text_is_passed_over(node: Node, there: Path) -> None:
    async def main() -> FetchResult:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for body in (b"challenge", b"{}"):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(
                    b"HTTP/1.1 200 OK\r\nRecovery-Proof: \xff\r\nContent-Length: %d\r\n\r\n" % len(body)
                    + body
                )
            await reader.read()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            impostor = Source(node_id=NodeId("w1"), address=f"127.0.0.1:{port}")
            return await fetching.fetch(task(node, there, impostor, node.source()))

    [fault] = asyncio.run(main()).faults
    assert "does not prove that it knows the job's token" in fault.reason


def test_a_copy_that_is_shorter_than_its_manifest_says_is_refused(
    node: Node, other: Node, there: Path
) -> None:
    os.truncate(node.file, 1_000)
    error = failures(other, there, node.source())
    assert "it offers 1000 bytes" in error.faults[0].reason
    assert error.faults[0].damaged


def test_a_copy_that_is_gone_is_asked_for_no_more(node: Node, there: Path) -> None:
    wanted = task(node, there, node.source())
    node.file.unlink()
    with pytest.raises(NotFetchedError) as caught:
        asyncio.run(fetching.fetch(wanted))
    assert caught.value.faults == (
        FetchFault(source=node.source(), reason="it does not hold it", damaged=True),
    )


def test_a_holder_with_another_token_gives_nothing(node: Node, tmp_path: Path, there: Path) -> None:
    with contextlib.closing(Node(tmp_path / "stranger", "another-token-than-that")) as stranger:
        error = failures(node, there, stranger.source())
    assert not error.faults[0].damaged
    assert "does not take this process for a node" in error.faults[0].reason


def test_a_holder_that_is_killed_in_the_middle_is_replaced_by_the_next(tmp_path: Path, there: Path) -> None:
    # More than the sockets on the way hold.
    content = CONTENT * 10
    with (
        contextlib.closing(Node(tmp_path / "a", content=content)) as node,
        contextlib.closing(Node(tmp_path / "b", content=content)) as other,
        killed_holder(node.path) as (source, kill),
    ):
        threading.Thread(target=kill_when_something_came, args=(there, kill), daemon=True).start()
        brought = asyncio.run(fetching.fetch(task(other, there, source, other.source())))
    assert Path(brought.checkpoint.path).read_bytes() == content
    assert [(one.source.node_id, one.damaged) for one in brought.faults] == [("killed", False)]
    assert not list(there.glob(".*"))


@contextlib.contextmanager
def killed_holder(path: Path) -> Iterator[tuple[Source, threading.Event]]:
    """A holder in a process of its own, behind a slow wire, killed when the event is set."""
    child = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("holder_child.py")), str(path), SECRET],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    kill = threading.Event()

    def wait() -> None:
        kill.wait(WAIT_S)
        child.send_signal(signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
    try:
        port = int(child.stdout.readline().rpartition(":")[2])
        with FaultProxy(port) as proxy:
            proxy.delay(0.002)
            yield Source(node_id=NodeId("killed"), address=f"127.0.0.1:{proxy.port}"), kill
            assert kill.is_set(), "it was killed in the middle"
    finally:
        kill.set()
        child.wait()
        child.stdout.close()


def kill_when_something_came(there: Path, kill: threading.Event) -> None:
    ticks = threading.Event()
    while not any(one.stat().st_size for one in there.glob(".*")):
        ticks.wait(0.002)
    kill.set()


def test_a_full_disk_ends_the_search_and_names_itself(
    node: Node, other: Node, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetched, "SPARE_BYTES", 1 << 62)
    error = failures(node, there, node.source(), other.source())
    assert "to spare are needed" in error.own_reason
    assert error.faults == ()


def test_a_replaced_process_publishes_nothing(node: Node, there: Path) -> None:
    with pytest.raises(NotFetchedError, match="another one has its place"):
        asyncio.run(fetching.fetch(task(node, there, node.source())._replace(still_owns_rank=lambda: False)))
    assert not list(there.glob("*"))


def test_a_fetch_that_is_cancelled_leaves_nothing(node: Node, there: Path) -> None:
    def half_there() -> bool:
        return bool(list(there.glob(".*")))

    async def main() -> None:
        work = asyncio.ensure_future(fetching.fetch(task(node, there, node.source())))
        await until(half_there, "the first byte")
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(main())
    assert not list(there.glob("*"))
    assert not list(there.glob(".*"))


# --- the exchange, in its thread ----------------------------------------------------------------------------------------


def test_an_exchange_fetches_beside_serving(node: Node, there: Path) -> None:
    came: list[FetchResult | NotFetchedError] = []
    done = threading.Semaphore(0)

    def outcome(found: FetchResult | NotFetchedError) -> None:
        came.append(found)
        done.release()

    for directory in (there, there.with_name("rank-9")):
        node.exchange.fetch(task(node, directory, node.source()), outcome)
    for _ in range(2):
        assert done.acquire(timeout=WAIT_S)
    assert {one.checkpoint.path for one in came if isinstance(one, FetchResult)} == {
        str(there / NAME),
        str(there.with_name("rank-9") / NAME),
    }


def test_an_exchange_that_cannot_serve_says_so(caplog: pytest.LogCaptureFixture, node: Node) -> None:
    assert node.exchange.address("192.0.2.1") == ""
    assert "copies_not_served" in caplog.text


# --- what a node holds --------------------------------------------------------------------------------------------------


def test_a_node_finds_and_removes_its_copies(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    Save(node.directory)("train-1_9.ckpt", b"newer", rank=1, step=9)
    Save(node.copies.directory("job-a", RUN, Rank(0)))("train-1_9.ckpt", b"of rank 0", rank=0, step=9)
    Save(node.copies.directory("job-a", RunId(2), RANK))("train-1_1.ckpt", b"of run 2", rank=1, run=2, step=1)
    (node.directory / "train-1_8.ckpt").write_bytes(b"without a manifest")

    held = node.copies.held("job-a", RUN)
    assert [(rank, one.step) for rank, one in held] == [(0, 9), (1, 9), (1, 7)]
    assert "copy_passed_over" in caplog.text

    node.copies.keep_only("job-a", RUN, lambda _, one: one.step == 9)
    assert [(rank, one.step) for rank, one in node.copies.held("job-a", RUN)] == [(0, 9), (1, 9)]
    assert len(node.copies.held("job-a", RunId(2))) == 1
    assert (node.directory / "train-1_8.ckpt").exists()


def test_what_an_earlier_process_left_half_fetched_goes(node: Node) -> None:
    left = node.directory / ".train-1_9.ckpt.1234-aa.tmp"
    left.write_bytes(b"half")
    node.copies.sweep("job-a")
    assert not left.exists()
    assert node.file.exists()


def test_own_checkpoints_are_served_while_they_are_there(node: Node, save_own: Path) -> None:
    digest = verify.check(save_own).digest
    assert node.copies.served(digest) is None
    node.copies.note_own(digest, str(save_own))
    served = node.copies.served(digest)
    assert served is not None
    assert served.files == (save_own,)
    save_own.with_suffix(".json").unlink()
    assert node.copies.served(digest) is None


@pytest.fixture
def save_own(tmp_path: Path) -> Path:
    return Save(tmp_path / "own")("train-1_5.ckpt", b"own", rank=0, step=5)


def test_copies_of_another_job_stay_apart_whatever_it_is_called(node: Node) -> None:
    names = {node.copies.directory(job, RUN, RANK) for job in ("job-a", "job-b", "../up", "a/b", "x" * 300)}
    assert len(names) == 5
    root = node.path / "workers" / "w0.copies"
    assert all(name.parent.parent.parent == root and len(name.parent.parent.name) <= 64 for name in names)
