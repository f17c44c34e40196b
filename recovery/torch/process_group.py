"""A world per generation: formed at a fresh rendezvous, broken from outside when the generation ends, closed behind it.

Eleven facts of PyTorch 2.13 shape this file.

1. A store that a client dials before it listens costs 5 s of back-off, so rank 0 publishes its address only once it listens.
2. DistributedDataParallel rebuilds its gradient buckets after its first backward pass, in the order in which gradients arrived. The
   bucket decides which chunk of the ring an element falls into, and so the order in which the ranks' values are added: the last
   bits of the sum. A world formed again at step 120 would do step 121 with first-pass buckets where an undisturbed run has
   rebuilt ones, and end with other bits. So rebuilding is off in our worlds: the layout is the same at every step of every process.
3. The destructor of a group waits, for its thread and for collectives that may never end: see ended_groups.py.
4. A store's client dials a dead address again and again until its timeout, and nothing can wake it in between: it has no socket then.
   So the dialling is ours, and torch's own gets a timeout of a second; the real one is set once it is connected.
   (The delay of 5 s that it is known for is DNS, see fact 7.)
5. A store's client that reaches a stopped server waits for its answer without any timeout, and gloo opens its connections one after
   the other while a world is formed. So a world that is broken while it is formed is broken again and again until it gives up.
6. gloo forgets a send that does not go onto the wire because the connection has just broken: when it reads the end of the connection it
   tells the receiver, and not the sender, and that one waiter stays until its timeout, whatever one does to the sockets. So a
   world is broken by ending what each rank reads itself: what it sends still goes out, and its sockets stay open towards its peers until
   all have left and the next world is formed. Where a peer has died with bytes unread, a send in the moment before gloo hears of it
   is lost all the same; the replacement of the process after MS_ABORT_TIMEOUT is for this.
7. c10d asks a name server about every connection of its store, unless the address is of the family in which /etc/hosts has it: rank 0
   listens on a socket of its address's own family, which halves the questions (the rest: `sockets.ask_again_soon`).
8. c10d names a world by how often this process has begun one, and forgets the count only when a world that was formed is destroyed.
   Ranks of which some were interrupted while they formed the last world would look for each other under two names, for ever.
9. A further group (`new_group`, a dimension of a device mesh) has sockets of its own, and a rank that waits in it is not woken by those of
   the world. So every group that is formed inside a world is watched as the world was.
10. DistributedDataParallel gives every rank rank 0's weights when it is built. Where the state will come from a survivor's memory, rank 0 may be
   a process that was started a moment ago, and what it overwrites may be that memory. So there it gives nothing. Nor does it compare shapes: ranks
   that have kept theirs build none (kept_objects.py). Shapes are compared when the state is given.
11. nccl's watchdog ends a process a minute after one of its peers has died, and a group that goes waits for its watchdog (torch 2.11 on an
   H200: survivors started their programs again, 20 s). So it is told to leave that to us, and an aborted group is kept as any other (fact 3).
   Until the generation is over nothing frees a rank that waits in a collective of nccl. Then it ends as if it had been done, and the loop goes
   on with what it left: live rollback counts no step that was begun or is done on the device behind it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import Reducer, Store, TCPStore
from torch.nn.parallel import distributed as data_parallel

from recovery import clock
from recovery.core.worker.wait_note import WAIT_NOTE_FIRST_MS, WAIT_NOTE_MS
from recovery.errors import UsageError
from recovery.torch import devices, sockets
from recovery.torch.compiled_code import compiled_code
from recovery.torch.ended_groups import EndedGroups
from recovery.torch.session_interface import SessionInterface
from recovery.torch.spread import forget_meshes
from recovery.training.exception_hook import exception_hook_kept
from recovery.worker.exec_in_place import close_in_children

_logger = logging.getLogger("recovery.torch")
_TIMEOUT = timedelta(minutes=30)
"""torch's own default for collectives. A dead or stuck peer is the control plane's business, and is noticed much sooner."""
_DIAL_TIMEOUT = timedelta(seconds=1)
"""Of one try to connect to a store that already listens."""
_DIAL_LIMIT_MS = 60_000
"""How long an unreachable store is dialled, unless the generation ends before. A dead rank 0 is known within the lease."""
_AGAIN_S = 0.02
"""Between two tries to break a world that is still being formed, and five times that between two dials."""

_torchs_form_group = distributed.distributed_c10d._new_process_group_helper  # noqa: SLF001 - fact 9

_torchs_sync = data_parallel._sync_module_states  # type: ignore[attr-defined]  # noqa: SLF001 - fact 10
_torchs_compare = data_parallel._verify_param_shape_across_processes  # type: ignore[attr-defined]  # noqa: SLF001 - fact 10

_world: World | None = None
_ended_sockets = sockets.EndedSockets()
"""Of the last world (fact 6)."""
_ended_groups = EndedGroups()
"""Fact 3. Not in the World: code that remembers a waker of an old world would keep its threads and descriptors alive."""


def init_process_group(
    session: SessionInterface, backend: str = "gloo", *, timeout: timedelta = _TIMEOUT
) -> None:
    """Form this generation's world; afterwards `torch.distributed` and DistributedDataParallel work as usual.

    Call it first thing in the training function. The world is broken when the generation is interrupted and closed when the
    function is left.

    Args:
        session: of this entry.
        backend: gloo or nccl (or both, as torch spells it). For nccl set the device (`session.local_rank`) before.
        timeout: of collectives; torch's default of 30 min, since a dead or stuck peer is noticed by the control plane.

    Raises:
        GenerationInterrupted: the generation ended while the world was formed.
        UsageError: there is a world already that is not ours.
        torch.distributed.DistNetworkError: rank 0's store cannot be reached within a minute. Ends the generation, as any such error.
    """
    global _world  # noqa: PLW0603 - torch's default world is one per process as well
    if distributed.is_initialized():
        raise UsageError(
            field="init_process_group",
            reason="torch.distributed is initialised already",
            next_step="Call recovery.torch.init_process_group(session) instead of torch's, once per entry of the function.",
        )
    if _world is None:
        close_in_children(lambda: _world.descriptors() if _world is not None else [])
    _ended_groups.watch_exit()
    _ended_groups.let_go()
    _ended_sockets.let_go()
    _world = World(session, backend, timeout)
    session.on_interrupt(_world.wake)
    session.on_generation_end(_world.close)
    session.on_generation_end(compiled_code.end_generation)
    # An interrupt that came before `wake` was registered has woken nobody.
    session.check()
    _world.form()


def check_not_aborted() -> None:
    """Before something is made of what a collective has left.

    Raises:
        GenerationInterrupted: it was aborted (fact 11).
    """
    if _world is not None:
        _world.check_not_aborted()


def note_boundary(device: torch.device) -> None:
    """All that makes a step whole was given to the device: the state is known to be whole if it is done when the world is aborted.

    Raises:
        GenerationInterrupted: the world was aborted already.
    """
    if _world is not None:
        _world.note_boundary(device)


def left_undone() -> bool:
    """Was the world aborted before the device had done all of the last boundary?"""
    return _world is not None and _world.left_undone


class World:
    """The sockets and the group of one generation."""

    def __init__(self, session: SessionInterface, backend: str, timeout: timedelta) -> None:
        """Note what is open before anything of the world is."""
        self._session, self._backend, self._timeout = session, backend, timeout
        self._before = frozenset(sockets.open_sockets().values())
        self._formed: frozenset[int] | None = None
        self._before_group: frozenset[int] | None = None
        """What was open before the further group that is being formed; None: none is."""
        self._broken, self._form_left = threading.Event(), threading.Event()
        self._breaking, self._closed = threading.Lock(), False
        self._aborting = threading.Lock()
        self._aborted = self.left_undone = False
        self._boundary: torch.cuda.Event | None = None
        """Behind what the device has to do for the last boundary."""

    def form(self) -> None:
        """Meet the other ranks."""
        threading.Thread(target=self._log_while_formed, name="recovery-form-world", daemon=True).start()
        try:
            self._form()
        finally:
            self._form_left.set()
        self._session.check()

    def _form(self) -> None:
        session = self._session
        sockets.check_epoll()
        sockets.ask_again_soon()
        if devices.NCCL in self._backend:
            devices.leave_end_of_nccl_to_us()
        sockets.use_interface_of(session.host)
        change_torch()
        store = self._meet()
        session.check()
        distributed.distributed_c10d._world.group_count = 0  # noqa: SLF001 - fact 8
        with exception_hook_kept():
            distributed.init_process_group(
                self._backend,
                store=store,
                rank=session.rank,
                world_size=session.world_size,
                timeout=self._timeout,
            )
        self._formed = self._inodes()

    @contextlib.contextmanager
    def forming_group(self) -> Iterator[None]:
        """Watch the sockets of one more group while it is formed, and from then on (fact 9).

        Raises:
            GenerationInterrupted: the generation ended before or meanwhile.
        """
        self._session.check()
        self._before_group = frozenset(sockets.open_sockets().values())
        self._form_left.clear()
        try:
            yield
        finally:
            self._formed = self._to_break()
            self._before_group = None
            self._form_left.set()
        self._session.check()

    def check_not_aborted(self) -> None:
        """See the function of this name."""
        if self._aborted:
            self._session.check()

    def note_boundary(self, device: torch.device) -> None:
        """See the function of this name."""
        self.check_not_aborted()
        if device.type == "cuda" and devices.NCCL in self._backend:
            self._boundary = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch ships it without types
            self._boundary.record(torch.cuda.current_stream(device))

    @property
    def takes_weights_from_memory(self) -> bool:
        """Fact 10."""
        return self._session.plan_is_live and not self._closed

    @property
    def takes_groups(self) -> bool:
        """Is the world formed, and not closed?"""
        return self._formed is not None and not self._closed

    def _to_break(self) -> frozenset[int]:
        """The sockets of the world and of its further groups, as far as they are there."""
        formed, before_group = self._formed, self._before_group
        if formed is None:
            return self._inodes()
        return formed if before_group is None else formed | (self._inodes() - before_group)

    def _meet(self) -> Store:
        session = self._session
        if session.rank == 0:
            # The store takes the descriptor over and closes it.
            listening = _listen(session.host)
            store = TCPStore(
                session.host,
                listening.getsockname()[1],
                is_master=True,
                wait_for_workers=False,
                timeout=self._timeout,
                master_listen_fd=listening.detach(),
            )
            session.publish_rendezvous(f"{session.host}:{store.port}")
            return store
        host, _, port = session.await_rendezvous().rpartition(":")
        return self._dial(host, int(port))

    def _dial(self, host: str, port: int) -> Store:
        """Connect to rank 0's store. Facts 4 and 5: nothing in here waits where it cannot be woken."""
        give_up_ms = clock.monotonic_ms() + _DIAL_LIMIT_MS
        while True:
            self._session.check()
            try:
                with socket.create_connection((host, port), timeout=_DIAL_TIMEOUT.total_seconds()):
                    pass
                store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_DIAL_TIMEOUT)
            except (OSError, distributed.DistNetworkError) as error:
                self._session.check()
                if clock.monotonic_ms() >= give_up_ms:
                    reason = f"rank 0's store at {host}:{port} cannot be reached: {error}"
                    raise distributed.DistNetworkError(reason) from error
                self._broken.wait(5 * _AGAIN_S)
            else:
                store.set_timeout(self._timeout)
                return store

    def _log_while_formed(self) -> None:
        """Log what the wait is for, as every wait does (core/worker/wait_note.py): gloo itself waits in silence, for `timeout`."""
        begun_ms, pause_ms = clock.monotonic_ms(), WAIT_NOTE_FIRST_MS
        while not self._form_left.wait(pause_ms / 1_000):
            _logger.info(
                "event=waiting for all %d ranks to join the world of generation %d, %d s so far",
                self._session.world_size,
                self._session.generation,
                (clock.monotonic_ms() - begun_ms) // 1_000,
            )
            pause_ms = WAIT_NOTE_MS

    def _inodes(self) -> frozenset[int]:
        """What appeared since before, without the connection to the scheduler, which may have been dialled again meanwhile."""
        return self._appeared_since(self._before) - {self._session.control_inode}

    @staticmethod
    def _appeared_since(before: frozenset[int]) -> frozenset[int]:
        """What appeared, without what other threads have opened meanwhile: to object storage, to a tracker of experiments."""
        appeared = frozenset(sockets.open_sockets().values()) - before
        return appeared - sockets.sockets_of_python() if appeared else appeared

    def descriptors(self) -> list[int]:
        """What a forked child must close."""
        return sockets.descriptors_of(self._to_break())

    def wake(self) -> None:
        """Break the world under a main thread that waits in it. Called from the connection's thread."""
        self._broken.set()
        count = self._break()
        if not self._form_left.is_set():
            threading.Thread(target=self._break_until_left, name="recovery-break-world", daemon=True).start()
        if devices.NCCL in self._backend and distributed.is_initialized():
            self._aborted = True
            # It may take seconds, in which the connection's thread would send no heartbeat.
            threading.Thread(target=self._abort, name="recovery-abort-world", daemon=True).start()
        _logger.debug("event=world_broken generation=%d sockets=%d", self._session.generation, count)

    def _abort(self) -> None:
        """End the collectives that wait on no socket: nccl's kernels. Never those of the next world."""
        with self._aborting:
            if self._closed or not distributed.is_initialized():
                return
            self.left_undone = self._boundary is not None and not self._boundary.query()  # type: ignore[no-untyped-call]  # as above
            # Facts 3 and 11: else this thread would be the one that lets them go.
            _ended_groups.keep(distributed.distributed_c10d._world.pg_map)  # noqa: SLF001 - all of this world
            try:
                distributed.distributed_c10d._abort_process_group()  # noqa: SLF001 - torch has no public call
            except Exception:
                _logger.warning(
                    "event=world_abort_failed generation=%d", self._session.generation, exc_info=True
                )

    def _break(self, *, last: bool = False) -> int:
        with self._breaking:
            # What was opened since belongs to the next world, which would wait for ever with one socket less.
            if self._closed:
                return 0
            self._closed = last
            return _ended_sockets.end(self._to_break())

    def _break_until_left(self) -> None:
        while not self._form_left.wait(_AGAIN_S):
            self._break()

    def close(self) -> None:
        """End the group. Every rank does, or has died: nobody is waited for, so nothing may be left to wait on."""
        try:
            self._break(last=True)
            # An abort under way is of this world; one that begins later sees that it is closed.
            with self._aborting:
                forget_meshes()
                if distributed.is_initialized():
                    _ended_groups.keep(distributed.distributed_c10d._world.pg_map)  # noqa: SLF001 - all of this world
                    distributed.destroy_process_group()
        except Exception:
            # Whatever a broken world raises at its end, it is over.
            _logger.warning("event=world_close_failed generation=%d", self._session.generation, exc_info=True)


def _listen(host: str) -> socket.socket:
    """A listening socket of the host's own family (fact 7); on every address where the host's is not of this machine, as behind NAT."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.bind(address)
    except OSError:
        listening.bind(("", 0))
    listening.listen()
    return listening


def change_torch() -> None:
    """Facts 2, 9 and 10: no bucket is rebuilt; every group that is made, and what a wrapper does with all ranks when it is built, come through here."""
    setattr(Reducer, "_rebuild_buckets", lambda reducer: False)  # noqa: B010 - a method of a C++ class
    setattr(distributed.distributed_c10d, "_new_process_group_helper", _form_group)  # noqa: B010 - a function of torch
    setattr(data_parallel, "_sync_module_states", _sync_module_states)  # noqa: B010 - as above
    setattr(data_parallel, "_verify_param_shape_across_processes", _compare_shapes)  # noqa: B010 - as above


def _form_group(*arguments: Any, **named: Any) -> Any:
    watched = (
        _world.forming_group() if _world is not None and _world.takes_groups else contextlib.nullcontext()
    )
    with watched:
        return _torchs_form_group(*arguments, **named)


def _sync_module_states(*arguments: Any, **named: Any) -> None:
    if _world is None or not _world.takes_weights_from_memory:
        _torchs_sync(*arguments, **named)


def _compare_shapes(*arguments: Any, **named: Any) -> None:
    if _world is None or not _world.takes_weights_from_memory:
        _torchs_compare(*arguments, **named)
