"""A world per generation: formed at a fresh rendezvous, broken from outside when the generation ends, closed behind it.

Three facts of PyTorch 2.13 shape this file.

1. A store that a client dials before it listens costs 5 s of back-off, so rank 0 publishes its address only once it listens.
2. DistributedDataParallel rebuilds its gradient buckets after its first backward pass, in the order in which gradients arrived. The
   bucket decides which chunk of the ring an element falls into, and so the order in which the ranks' values are added: the last
   bits of the sum. A world formed again at step 120 would do step 121 with first-pass buckets where an undisturbed run has
   rebuilt ones, and end with other bits. So rebuilding is off in our worlds: the layout is the same at every step of every life.
3. The destructor of DistributedDataParallel's reducer holds the GIL. If it drops the last reference to a gloo group, it waits for
   the group's thread, which may wait for the GIL to let go of a finished piece of work: a deadlock (seen once in a few dozen
   worlds). So a world keeps its group until the next one is formed; Python's own reference is dropped without the GIL.
"""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Iterator
from datetime import timedelta

import psutil
from torch import distributed
from torch._C._distributed_c10d import Reducer, Store, TCPStore

from recovery.errors import UsageError
from recovery.torch import sockets
from recovery.training.session import Session
from recovery.worker.descriptors import close_in_children

_logger = logging.getLogger("recovery.torch")
_TIMEOUT = timedelta(minutes=30)
"""torch's own default for collectives. A dead or stuck peer is the control plane's business, and is noticed much sooner."""

_world: World | None = None


def init_process_group(session: Session, backend: str = "gloo", *, timeout: timedelta = _TIMEOUT) -> None:
    """Form this generation's world; afterwards `torch.distributed` and DistributedDataParallel work as usual.

    Call it first thing in the training function. The world is broken when the generation is interrupted and closed when the
    function is left.

    Args:
        session: of this entry.
        backend: gloo or nccl (or both, as torch spells it). For nccl set the device (`session.local_rank`) before.
        timeout: of collectives.

    Raises:
        GenerationInterrupted: the generation ended while the world was formed.
        UsageError: there is a world already that is not ours.
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
    _world = World(session, backend, timeout)
    session.on_interrupt(_world.wake)
    session.on_generation_end(_world.close)
    _world.form()


class World:
    """The sockets and the group of one generation."""

    def __init__(self, session: Session, backend: str, timeout: timedelta) -> None:
        """Note what is open before anything of the world is."""
        self._session, self._backend, self._timeout = session, backend, timeout
        self._before = frozenset(sockets.open_sockets().values())
        self._formed: frozenset[int] | None = None
        self._group: distributed.ProcessGroup | None = None

    def form(self) -> None:
        """Meet the other ranks."""
        session = self._session
        _use_interface_of(session.host)
        _keep_bucket_layout()
        store = self._meet()
        session.check()
        distributed.init_process_group(
            self._backend,
            store=store,
            rank=session.rank,
            world_size=session.world_size,
            timeout=self._timeout,
        )
        self._group = distributed.group.WORLD
        self._formed = self._inodes()
        session.check()

    def _meet(self) -> Store:
        session = self._session
        if session.rank == 0:
            store = TCPStore(session.host, 0, is_master=True, wait_for_workers=False, timeout=self._timeout)
            session.publish_rendezvous(f"{session.host}:{store.port}")
            return store
        host, _, port = session.await_rendezvous().rpartition(":")
        return TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=self._timeout)

    def _inodes(self) -> frozenset[int]:
        """What appeared since before, without the connection to the scheduler, which may have been dialled anew meanwhile."""
        control = self._session.control_inode
        return frozenset(sockets.open_sockets().values()) - self._before - {control}

    def descriptors(self) -> list[int]:
        """What a forked child must close."""
        return sockets.descriptors_of(self._formed if self._formed is not None else self._inodes())

    def wake(self) -> None:
        """Break the world under a main thread that waits in it. Called from the connection's thread."""
        count = sockets.shut_down(self._formed if self._formed is not None else self._inodes())
        if "nccl" in self._backend and distributed.is_initialized():
            distributed.distributed_c10d._abort_process_group()  # noqa: SLF001 - nccl's kernels wait on no socket
        _logger.debug("event=world_broken generation=%d sockets=%d", self._session.generation, count)

    def close(self) -> None:
        """End the group. Every rank does, or has fallen: nobody is waited for."""
        if distributed.is_initialized():
            if self._session.interrupted:
                self.wake()
            distributed.destroy_process_group()


def _keep_bucket_layout() -> None:
    """See fact 2 in this module's head. DistributedDataParallel asks for a rebuild before every forward pass; the answer is no."""
    setattr(Reducer, "_rebuild_buckets", lambda reducer: False)  # noqa: B010 - a method of a C++ class


def _use_interface_of(host: str) -> None:
    """Let gloo use the interface that reaches the scheduler: its own guess resolves the host name, which often fails."""
    if "GLOO_SOCKET_IFNAME" in os.environ:  # noqa: TID251 - gloo's only way to be told
        return
    try:
        wanted = ipaddress.ip_address(host)
    except ValueError:
        return
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.address.partition("%")[0] == str(wanted):
                os.environ["GLOO_SOCKET_IFNAME"] = name  # noqa: TID251 - see above
                return


_DATA_PLANE = (
    "gloo",
    "nccl",
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "tcpstore",
    "socket timeout",
)
"""Words of RuntimeErrors that torch 2.13 raises for a broken world, in lower case. A user's own error hardly says them."""


def is_collective_error(error: BaseException) -> bool:
    """Is this the data plane breaking, or anything that followed from it?"""
    return any(_is_data_plane(link) for link in _chain(error))


def _is_data_plane(error: BaseException) -> bool:
    if isinstance(error, distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _DATA_PLANE)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
