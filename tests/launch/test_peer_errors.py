"""Which last lines of a program say that it lost a peer, and which that the fault was its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recovery.launch.peer_errors import names_lost_peer, written

OF_A_LOST_PEER = (
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:38021",
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1331, remote process exited or there was a network error",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
    "RuntimeError: Socket Timeout",
    "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",
)
OF_ITS_OWN = (
    "ZeroDivisionError: a mistake in the user's own code",
    "RuntimeError: CUDA error: out of memory",
    "FileNotFoundError: [Errno 2] No such file or directory: 'train.csv'",
    "AssertionError: the connection of two layers differs",
)


@pytest.mark.parametrize("line", OF_A_LOST_PEER)
def test_an_error_of_a_lost_peer_is_known(tmp_path: Path, line: str) -> None:
    with (tmp_path / "log").open("ab", buffering=0) as log:
        log.write(f"Traceback (most recent call last):\n  of somewhere\n{line}\n".encode())
        assert names_lost_peer(log.fileno(), 0)


@pytest.mark.parametrize("line", OF_ITS_OWN)
def test_an_error_of_its_own_names_no_peer(tmp_path: Path, line: str) -> None:
    with (tmp_path / "log").open("ab", buffering=0) as log:
        log.write(f"Traceback (most recent call last):\n  of somewhere\n{line}\n".encode())
        assert not names_lost_peer(log.fileno(), 0)


def test_only_what_this_program_has_written_last_is_looked_at(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab", buffering=0) as log:
        log.write(f"{OF_A_LOST_PEER[0]}\n".encode())
        before = written(log.fileno())
        log.write(f"{OF_ITS_OWN[0]}\n".encode())
        assert not names_lost_peer(log.fileno(), before)
        log.write(f"{OF_A_LOST_PEER[0]}\n".encode() + b"another line\n" * 30)
        assert not names_lost_peer(log.fileno(), before)
        # A log that was emptied meanwhile.
        assert not names_lost_peer(log.fileno(), 1 << 20)


def test_what_cannot_be_read_again_names_nobody() -> None:
    reads, writes = os.pipe()
    try:
        os.write(writes, OF_A_LOST_PEER[0].encode())
        assert written(writes) == 0
        assert not names_lost_peer(writes, 0)
    finally:
        os.close(reads)
        os.close(writes)
