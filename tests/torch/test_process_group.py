"""Real worlds of real processes: formed, broken in every way that a peer can break them, and formed again."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import re
import signal
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from torch import distributed

from recovery.errors import GenerationInterrupted
from recovery.torch import devices, process_group, sockets
from recovery.torch.collective_errors import is_collective_error
from recovery.torch.process_group import World
from tests.faults import intercepted
from tests.needs import lacks
from tests.pace import HANG_S, wait_for
from tests.torch.fake_session import FakeSession
from tests.torch.ranks import Ranks


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    with Ranks(3) as started:
        yield started


@pytest.mark.cluster
def test_all_know_when_one_is_killed(ranks: Ranks) -> None:
    ranks.enter(1, "train")
    ranks.wait_all("first")
    ranks.ranks[1].kill(signal.SIGSTOP)
    # Fact 6 in process_group.py: gloo forgets a send to a peer that has just died.
    _until_all_wait(ranks, but=1)
    ranks.ranks[1].kill()
    ranks.interrupt(1, but=(1,))
    ends = ranks.wait_all("left", but=(1,))
    assert all(event["left"] == "interrupted" or event["collective"] for event in ends), ends
    ranks.wait_all("closed", but=(1,))

    ranks.replace(1)
    ranks.enter(2, "train")
    ranks.wait_all("first")


@pytest.mark.cluster
def test_all_are_woken_when_one_is_stopped(ranks: Ranks) -> None:
    ranks.enter(1, "all_reduce")
    ranks.wait_all("first")
    ranks.ranks[2].kill(signal.SIGSTOP)
    _until_all_wait(ranks, but=2)
    ranks.interrupt(1, but=(2,))
    # By their sockets: rank 2 sends nothing, and a collective of its own accord waits for half an hour.
    ranks.wait_all("woke", but=(2,))
    ends = ranks.wait_all("left", but=(2,))
    assert [(event["left"], event["collective"]) for event in ends] == [("error", True)] * 2
    ranks.wait_all("closed", but=(2,))

    ranks.ranks[2].kill(signal.SIGCONT)
    ranks.interrupt(1)
    try:
        ranks.ranks[2].wait("closed", 20)
    except queue.Empty:
        # Fact 6 in process_group.py: it was stopped just before it sent, to peers that have left; then its process is replaced.
        ranks.replace(2)
    ranks.enter(2)
    ranks.wait_all("first")


@pytest.mark.cluster
def test_who_waits_in_a_group_of_its_own_for_one_that_is_stopped_is_woken(ranks: Ranks) -> None:
    ranks.enter(1, "pair")
    ranks.wait_all("first")
    ranks.ranks[1].kill(signal.SIGSTOP)
    _until_all_wait(ranks, but=1)
    ranks.interrupt(1, but=(1,))

    assert ranks.ranks[0].wait("left")["collective"]
    ranks.ranks[0].wait("closed")
    ranks.ranks[1].kill()
    ranks.replace(1)
    ranks.enter(2, "pair")
    ranks.wait_all("first")


@pytest.mark.cluster
@pytest.mark.parametrize("victim", [0, 1])
def test_a_peer_that_dies_while_the_world_is_formed_holds_up_nobody(ranks: Ranks, victim: int) -> None:
    ranks.withhold_rendezvous = True
    ranks.enter(1)
    address = ranks.address(1)
    ranks.ranks[victim].kill()
    others = tuple(number for number in range(3) if number != victim)
    # A dead rank 0 is dialled; without rank 1 the store waits for its keys.
    ranks.send_address(1, address)
    ranks.interrupt(1, but=(victim,))
    ends = [ranks.ranks[number].wait("left") for number in others]
    assert all(event["left"] == "interrupted" or event["collective"] for event in ends), ends


@pytest.mark.cluster
def test_a_peer_that_stops_while_the_world_is_formed_holds_up_nobody(ranks: Ranks) -> None:
    ranks.withhold_rendezvous = True
    ranks.enter(1)
    address = ranks.address(1)
    # Its kernel still accepts connections, and nobody answers.
    ranks.ranks[0].kill(signal.SIGSTOP)
    ranks.send_address(1, address)
    ranks.interrupt(1, but=(0,))
    ends = ranks.wait_all("left", but=(0,))
    assert all(event["left"] == "interrupted" or event["collective"] for event in ends), ends


@pytest.mark.cluster
def test_ranks_that_were_interrupted_at_different_points_meet_again(ranks: Ranks) -> None:
    ranks.withhold_rendezvous = True
    ranks.enter(1)
    ranks.send_address(1, ranks.address(1), but=(2,))
    # They have begun a world (fact 8); rank 2 has not.
    _until_all_wait(ranks, but=2)
    ranks.interrupt(1)
    ranks.wait_all("closed")

    ranks.withhold_rendezvous = False
    ranks.enter(2)
    ranks.wait_all("first")


def test_a_world_that_is_long_in_coming_logs_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process_group, "WAIT_NOTE_FIRST_MS", 10)
    monkeypatch.setattr(process_group, "WAIT_NOTE_MS", 10)
    session = FakeSession(rank=1, world_size=3, generation=7)
    note = r"event=waiting for all 3 ranks to join the world of generation 7, \d+ s so far"

    def form() -> None:
        with contextlib.suppress(GenerationInterrupted):
            World(session, "gloo", timedelta(seconds=60)).form()

    thread = threading.Thread(target=form)
    with caplog.at_level(logging.INFO, "recovery.torch"):
        thread.start()
        wait_for(lambda: len(re.findall(note, caplog.text)) >= 2, "second note")
        session.interrupt()
        thread.join()


def test_a_world_that_is_broken_late_does_not_take_the_next_one_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked, looking, opened = sockets.open_sockets, threading.Event(), threading.Event()

    def look_late() -> dict[int, int]:
        if threading.current_thread().name == "recovery-break-world":
            looking.set()
            # It times out where `close` waits for this very look, as it should.
            opened.wait(0.5)
        return looked()

    world = World(FakeSession(), "gloo", timedelta(seconds=60))
    monkeypatch.setattr(sockets, "open_sockets", look_late)
    # It is still being formed.
    world.wake()
    assert looking.wait(60)
    world._form_left.set()
    world.close()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # As gloo's: no object of Python holds them.
        one = socket.create_connection(listening.getsockname()).detach()
        other = listening.accept()[0].detach()
        opened.set()
        for thread in threading.enumerate():
            if thread.name == "recovery-break-world":
                thread.join()
        os.write(one, b"still here")
        assert os.read(other, 10) == b"still here"
        os.close(one)
        os.close(other)


def test_what_the_scripts_threads_open_while_a_world_forms_is_left_alone_when_it_breaks() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        world = World(FakeSession(), "gloo", timedelta(seconds=60))
        mine = socket.create_connection(listening.getsockname())
        accepted = listening.accept()[0]
        of_world = socket.create_connection(listening.getsockname()).detach()
        world.wake()
        world._form_left.set()
        assert os.read(of_world, 1) == b"", "the world was not broken"
        with mine, accepted:
            mine.setblocking(False)
            with pytest.raises(BlockingIOError):
                mine.recv(1)
        world.close()
        os.close(of_world)


def test_an_abort_of_nccl_that_takes_long_holds_up_neither_heartbeats_nor_strikes_the_next_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In place of NCCL, which needs devices: when it returns is the test's to say."""
    aborting, may_end, ended = threading.Event(), threading.Event(), list[str]()

    def abort() -> None:
        aborting.set()
        may_end.wait(60)
        ended.append("aborted")

    monkeypatch.setattr(distributed.distributed_c10d, "_abort_process_group", abort)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "destroy_process_group", lambda: ended.append("destroyed"))
    monkeypatch.setattr(process_group._ended_groups, "keep", lambda _: None)
    world = World(FakeSession(), "nccl", timedelta(seconds=60))
    world._form_left.set()
    world.wake()
    assert aborting.wait(60)
    closing = threading.Thread(target=world.close)
    closing.start()
    assert not ended
    may_end.set()
    closing.join()
    world._abort()
    assert ended == ["aborted", "destroyed"]


def test_an_aborted_group_is_kept_before_torch_lets_go_of_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The destructor of one of nccl waits for its watchdog, which may sleep."""
    done = list[str]()

    def abort() -> None:
        done.append("aborted")
        raise RuntimeError("the driver is gone")

    monkeypatch.setattr(distributed.distributed_c10d, "_abort_process_group", abort)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(process_group._ended_groups, "keep", lambda _: done.append("kept"))
    World(FakeSession(), "cpu:gloo,cuda:nccl", timedelta(seconds=60))._abort()
    assert done == ["kept", "aborted"]
    assert "event=world_abort_failed generation=1" in caplog.text


def test_nccls_watchdog_is_told_to_leave_the_process_alone_unless_somebody_has_said_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in devices.NCCL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    devices.leave_end_of_nccl_to_us()
    assert {name: os.environ[name] for name in devices.NCCL_VARIABLES} == {
        **devices.NCCL_VARIABLES,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }


@pytest.mark.cluster
def test_worlds_are_formed_twenty_times_without_leaking(ranks: Ranks) -> None:
    held = []
    for generation in range(1, 21):
        ranks.enter(generation, "idle")
        formed = ranks.wait_all("formed")
        assert not any(event["refused"] for event in formed), "rank 0's store was dialled before it listened"
        ranks.wait_all("first")
        ranks.interrupt(generation)
        ranks.wait_all("left")
        held.append([(event["descriptors"], event["threads"]) for event in ranks.wait_all("closed")])
    # gloo closes behind itself in its own time, so single rounds differ: what counts is the least of a few
    for rank in range(3):
        early, late = ([held[round_][rank] for round_ in rounds] for rounds in (range(2, 8), range(14, 20)))
        assert (
            min(descriptors for descriptors, _ in late) <= min(descriptors for descriptors, _ in early) + 2
        ), held
        assert min(threads for _, threads in late) <= min(threads for _, threads in early), held


def test_users_errors_are_not_the_data_planes() -> None:
    assert not is_collective_error(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_collective_error(ValueError("connection closed by peer"))
    assert not is_collective_error(RuntimeError("ProcessGroupGloo::allreduce: unsupported layout"))


def test_two_ranks_on_one_gpu_are_no_broken_world_that_another_one_would_mend() -> None:
    """As an H200 said it (torch 2.11, NCCL 2.28)."""
    said = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, {}\n{}: This usually reflects ...\nLast error:\n"
    twice = distributed.DistBackendError(
        said.format("invalid usage (run with NCCL_DEBUG=WARN for details)", "ncclInvalidUsage")
    )
    gone = distributed.DistBackendError(
        said.format("remote process exited or there was a network error", "ncclRemoteError")
    )
    assert [is_collective_error(error) for error in (twice, gone)] == [False, True]


def test_what_follows_from_a_broken_world_is_the_data_planes() -> None:
    followed = KeyError("in a handler")
    followed.__context__ = distributed.DistNetworkError("gone")
    assert is_collective_error(followed)


def test_shutting_down_spares_listeners_pipes_and_what_is_not_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        named = socket.create_connection(listener.getsockname())
        other = socket.create_connection(listener.getsockname())
        left, right = socket.socketpair()
        with named, other, left, right:
            wanted = {os.fstat(one.fileno()).st_ino for one in (listener, named, left)}
            before = sockets.descriptors_of(wanted)
            ended = sockets.EndedSockets()
            assert (ended.end(wanted), ended.end(wanted)) == (1, 0)
            assert named.recv(1) == b""
            # A send that fails would be forgotten by gloo, and whoever waits for it would hang.
            named.send(b"x")
            other.send(b"x")
            left.send(b"x")
            socket.create_connection(listener.getsockname()).close()
            ended.let_go()
            assert sockets.descriptors_of(wanted) == before


def test_a_socket_is_ended_where_there_is_no_descriptor_for_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(descriptor: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files", descriptor)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        named = socket.create_connection(listener.getsockname())
        with named:
            monkeypatch.setattr(os, "dup", refuse)
            sockets.EndedSockets().end([os.fstat(named.fileno()).st_ino])
            assert named.recv(1) == b""
            named.send(b"x")


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS])
def test_a_sandbox_that_refuses_what_torch_waits_with_is_said_by_name(number: int) -> None:
    """Each generation broke as it began, for ten minutes."""
    why = intercepted.is_usable()
    if why:
        lacks(why, "run on Linux 5.5 or newer")
    end = intercepted.run_child(lambda _: sockets.check_epoll(), ("epoll_create1",), lambda _: number)
    assert end.code == intercepted.REFUSED
    assert end.said.startswith("USAGE: ")
    assert f"epoll_create1: is refused here ({os.strerror(number)})" in end.said
    sockets.check_epoll()


def test_a_process_without_a_descriptor_left_is_not_said_to_be_in_a_sandbox() -> None:
    why = intercepted.is_usable()
    if why:
        lacks(why, "run on Linux 5.5 or newer")
    end = intercepted.run_child(lambda _: sockets.check_epoll(), ("epoll_create1",), lambda _: errno.EMFILE)
    assert end.code == 0, end.said


def test_the_peer_of_a_socket_that_was_ended_does_not_notice_before_it_is_let_go_of() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mine = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
        with mine, peer:
            peer.send(b"unread")
            ended = sockets.EndedSockets()
            assert ended.end([os.fstat(mine.fileno()).st_ino]) == 1
            mine.close()
            for _ in range(2):
                peer.send(b"x")
            peer.settimeout(0.05)
            with pytest.raises(TimeoutError):
                peer.recv(1)
            ended.let_go()
            peer.settimeout(HANG_S)
            with pytest.raises(ConnectionResetError):
                peer.recv(1)


def _until_all_wait(ranks: Ranks, *, but: int) -> None:
    """Until all other ranks together have used no processor time for a while: they sit in the collective."""
    ranks.wait_idle(but=(but,))
