"""Where no thread can be started, or one ends by a mistake, nobody waits for it: there is a result, or an error with a name."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from recovery import config
from recovery.checkpoint.verify import Wanted, check
from recovery.checkpoint.watch import DirectoryWatch
from recovery.core.effects import Persist
from recovery.core.ids import NodeId, Rank, RunId
from recovery.core.rules import Rules
from recovery.core.worker import stimuli as s
from recovery.core.worker.effects import Connect, Disconnect, FindCheckpoints, WorkerEffect
from recovery.errors import ROWS, ProcessError
from recovery.launch.attempt import Attempt, History
from recovery.objects import commits
from recovery.objects.store import opened
from recovery.objects.uploads import Part, Uploads
from recovery.store.reader import read_worker
from recovery.transport.access import Access
from recovery.transport.blocking_calls import Calls
from recovery.transport.client import Client
from recovery.transport.job_token import Authenticator
from recovery.worker.checkpoint_search import Found
from recovery.worker.copy_work import CopyWork
from recovery.worker.executor import Executor
from recovery.worker.fetching import FetchRequest, FetchResult, NotFetchedError
from recovery.worker.file_exchange import FileExchange
from recovery.worker.held_copies import Copies
from recovery.worker.local_store import LocalStore
from recovery.worker.object_storage import ObjectStorage
from recovery.worker.service import WorkerService
from recovery.worker.training_control import TrainingControl
from tests.checkpoint.conftest import Save
from tests.needs import needs_package
from tests.store import samples
from tests.transport.wire import HOST, WAIT_S, run, serving, until
from tests.untraced import ROOT, run_module

_WISH = FetchRequest(
    wanted=Wanted(job="job-a", run=1, rank=1, world_size=2, step=7, digest="d"),
    place=Path,
    sources=(),
    access=Access(),
    still_owns_rank=lambda: True,
)


@contextlib.contextmanager
def without_threads() -> Iterator[None]:
    """No thread can be started: the system has no place for a stack of this size."""
    before = threading.stack_size(1 << 47)
    try:
        yield
    finally:
        threading.stack_size(before)


@pytest.fixture
def exchange() -> Iterator[FileExchange]:
    one = FileExchange(lambda digest: None, lambda: Authenticator(None), lambda: None)
    yield one
    one.close()


def test_a_node_that_cannot_start_its_file_server_gives_no_files_and_holds_no_lock(
    exchange: FileExchange, caplog: pytest.LogCaptureFixture
) -> None:
    with without_threads():
        assert (exchange.address(HOST), exchange.address(HOST)) == ("", "")
    assert caplog.text.count("event=copies_not_served") == 1
    assert "can't start new thread" in caplog.text


def test_a_fetch_that_cannot_begin_is_over(exchange: FileExchange) -> None:
    came: list[FetchResult | NotFetchedError] = []
    with without_threads():
        exchange.fetch(_WISH, came.append)

    [outcome] = came
    assert isinstance(outcome, NotFetchedError)
    assert "can't start new thread" in outcome.own_reason


def test_a_call_for_which_no_thread_can_be_started_is_made_once() -> None:
    go_on, made = threading.Event(), list[int]()
    with Calls(max_workers=2) as calls:
        busy = calls.submit(go_on.wait, WAIT_S)
        with without_threads():
            done = calls.submit(made.append, 1)
        assert done.result(WAIT_S) is None
        go_on.set()
        assert busy.result(WAIT_S)

    assert made == [1]


def test_more_calls_than_threads_are_made_in_turn_and_a_cancelled_one_is_not() -> None:
    go_on, made = threading.Event(), list[int]()
    calls = Calls(max_workers=1)
    busy = calls.submit(go_on.wait, WAIT_S)
    waiting = [calls.submit(made.append, number) for number in range(3)]
    assert waiting[1].cancel()
    failing = calls.submit(int, "no number")
    go_on.set()

    assert busy.result(WAIT_S)
    with pytest.raises(ValueError, match="no number"):
        failing.result(WAIT_S)
    assert made == [0, 2]


_STUCK = """
import asyncio, threading
from recovery.transport.blocking_calls import Calls
begun = threading.Event()

def serve():
    loop = asyncio.new_event_loop()
    loop.set_default_executor(Calls())
    # A disk or a name server that never answers.
    loop.run_in_executor(None, lambda: (begun.set(), threading.Event().wait()))
    loop.run_forever()

threading.Thread(target=serve, daemon=True).start()
assert begun.wait(60)
"""


def test_a_call_that_never_returns_does_not_hold_the_end_of_its_process() -> None:
    done = subprocess.run([sys.executable, "-c", _STUCK], cwd=ROOT, timeout=60, check=False)

    assert done.returncode == 0


def test_a_store_whose_writer_cannot_be_started_is_opened_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    released: list[Persist] = []

    async def main() -> None:
        store = LocalStore(tmp_path, NodeId("w0"), accept_without_wal=False)
        store.attach(asyncio.get_running_loop(), released.append, lambda error: None)
        with without_threads():
            store.open()
            assert store.find_checkpoints("job", RunId(1), Rank(0), None) == Found()
        store.submit(Persist((samples.checkpoint(),)))
        store.open()
        await until(lambda: len(released) > 1, "the row")
        store.close()

    run(main())

    assert len(read_worker(tmp_path, "w0").checkpoints) == 1
    assert "event=store_not_opened it is tried again: can't start new thread" in caplog.text


def test_an_upload_whose_thread_cannot_be_started_begins_with_the_next_commit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    there = tmp_path / "none.ckpt"
    uploads = Uploads(lambda: opened(f"file://{tmp_path}"))
    part = Part(10, there, "digest")
    uploads.know(part)
    with without_threads():
        uploads.order(part)
    assert "event=upload_failed no thread can be started" in caplog.text

    uploads.committed(10)
    # It is gone: the thread has looked.
    assert not uploads.finish(WAIT_S)
    assert "event=upload_left_out" in caplog.text
    uploads.stop()


def test_behind_a_script_where_no_thread_starts_any_more_its_last_checkpoint_is_sent_without_one(
    tmp_path: Path,
) -> None:
    needs_package("fsspec")
    there = opened(f"file://{tmp_path}/objects")
    uploads = Uploads(lambda: there)
    path = Save(tmp_path / "own")("train-1_10.ckpt", world_size=1, step=10)
    with without_threads():
        uploads.know(Part(10, path, check(path).digest))
        uploads.committed(10)
        assert uploads.finish(1)
    assert uploads.unsent is None
    assert commits.steps(there, "job-a", 1) == (commits.At(1, 10),)


def test_a_watch_whose_events_need_a_thread_that_cannot_be_started_looks_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    changed = threading.Event()
    watch = DirectoryWatch(tmp_path, changed.set, rescan_s=0.01)
    with without_threads():
        watch._observe(tmp_path.stat().st_ino)
    assert "event=checkpoint_watch_without_events" in caplog.text

    watch.start()
    (tmp_path / "a-1_1.ckpt").touch()
    assert changed.wait(WAIT_S)
    watch.stop()


# --- what the machine waits for -----------------------------------------------------------------------------------------


class BrokenClient(Client):
    @override
    async def connect(self, timeout_s: float) -> None:
        raise ValueError("a mistake of the program")

    @override
    async def close(self) -> None:
        raise ValueError("a mistake of the program")


class BrokenStore(LocalStore):
    @override
    def find_checkpoints(self, *arguments: object) -> Any:
        raise MemoryError("no memory")


class BrokenStorage(ObjectStorage):
    @override
    def bring(self, *arguments: object) -> Any:
        raise RuntimeError("a driver's mistake")


def results_of(
    path: Path,
    port: int,
    effect: WorkerEffect,
    *,
    client_of: type[Client] = Client,
    store_of: type[LocalStore] = LocalStore,
    storage_of: type[ObjectStorage] = ObjectStorage,
    exchange: FileExchange,
) -> Coroutine[Any, Any, list[s.WorkerStimulus]]:
    """Carry an effect out; what the machine is given."""

    async def main() -> list[s.WorkerStimulus]:
        delivered: list[s.WorkerStimulus] = []
        asyncio.get_running_loop().set_default_executor(Calls())
        client = client_of(
            host=HOST,
            port=port,
            rules=Rules(worker_count=1),
            on_message=print,
            on_lost=print,
            access=Access(),
        )
        copies = Copies(path, "w0")
        executor = Executor(
            client=client,
            training_control=TrainingControl(pause_limit_ms=60_000, on_pause=lambda paused_ms: None),
            local_store=store_of(None, NodeId("w0"), accept_without_wal=False),
            copy_work=CopyWork(
                copies,
                exchange,
                world_size=1,
                access=Access(),
                host=lambda: HOST,
                still_owns_rank=lambda: True,
            ),
            object_storage=storage_of(
                (path / "bucket").as_uri(),
                copies,
                lambda: True,
                lambda steps: None,
                lambda step, reason: None,
                lambda part, is_there: None,
            ),
            abort_timeout_ms=1_000,
            finished_file=None,
            deliver=delivered.append,
            replace=lambda reason, hangs: None,
        )
        executor.carry_out(effect)
        await until(lambda: delivered or not executor._tasks, "a result")
        if client_of is Client:
            await client.close()
        return delivered

    return main()


def test_a_worker_without_threads_for_its_files_dials_all_the_same(
    exchange: FileExchange, tmp_path: Path
) -> None:
    async def main() -> list[s.WorkerStimulus]:
        async with serving() as (_, port):
            with without_threads():
                return await results_of(tmp_path, port, Connect(), exchange=exchange)

    assert run(main()) == [s.Connected("")]


RESULTS: dict[type, type] = {
    Connect: s.ConnectFailed,
    Disconnect: s.Disconnected,
    FindCheckpoints: s.CheckpointsFound,
}
FIND = FindCheckpoints(1, "job", RunId(1), Rank(0))


@pytest.mark.parametrize(
    ("effect", "parts", "event"),
    [
        (Connect(), {"client_of": BrokenClient}, "dial_failed"),
        (Disconnect(), {"client_of": BrokenClient}, "close_failed"),
        (FIND, {"store_of": BrokenStore}, "checkpoints_not_found MemoryError: no memory"),
        (FIND, {"storage_of": BrokenStorage}, "store_not_asked RuntimeError: a driver's mistake"),
    ],
)
def test_whatever_fails_the_machine_is_given_a_result_and_a_line_says_why(
    effect: WorkerEffect,
    parts: dict[str, Any],
    event: str,
    exchange: FileExchange,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    [delivered] = run(results_of(tmp_path, 1, effect, exchange=exchange, **parts))

    assert isinstance(delivered, RESULTS[type(effect)])
    assert f"event={event}" in caplog.text


# --- the thread of the connection ---------------------------------------------------------------------------------------


def test_a_process_that_cannot_start_its_own_thread_says_so_and_counts_as_one_that_never_began() -> None:
    environment = {
        "MS_ROLE": "MS_WORKER",
        "MS_WORKER_NUM": "1",
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": "1024",
        "MS_NODE_ID": "w0",
    }
    worker = WorkerService(config.load(environment))
    with (
        without_threads(),
        pytest.raises(ProcessError, match=r"NO_THREAD: .*can't start new thread") as caught,
    ):
        worker.start()
    attempt = Attempt(
        number=1,
        pid=7,
        status=caught.value.exit_code,
        cause=ROWS["NO_THREAD"].cause,
        how="",
        begun_ms=0,
        ended_ms=1,
    )
    history = History()
    history.note(attempt, handed_over=False)
    history.note_relaunch()
    assert (attempt.begun, history.relaunched_ms, history.unbegun_ms is None) == (False, [], False)


@pytest.mark.parametrize("when", ["start", "later", "stimulus"])
def test_a_worker_whose_connection_thread_breaks_ends_with_a_name(when: str) -> None:
    """Nobody would tell the main thread anything: it would wait for ever for the thread, or for a plan."""
    done = run_module(f"tests.worker.broken_child {when}")

    said = done.stdout + done.stderr
    assert "event=worker_broken" in said
    assert ("str: AssertionError" if when == "stimulus" else "ValueError: a mistake of the program") in said
    if when != "start":
        assert "WORKER_BROKEN: a fault of the engine" in said
        assert done.returncode == ROWS["WORKER_BROKEN"].exit_code
    else:
        assert "WORKER_BROKEN" in done.stderr
