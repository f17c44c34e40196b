"""Serves and fetches files of checkpoints, in a thread with a loop of its own: a slow disk or peer costs no heartbeat."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ipaddress
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from recovery.config import Settings, SettingsRole
from recovery.errors import RecoveryError
from recovery.transport.blocking_calls import Calls
from recovery.transport.local_address import address_towards
from recovery.worker.exec_in_place import close_in_children
from recovery.worker.fetching import FetchRequest, FetchResult, NotFetchedError, fetch

if TYPE_CHECKING:
    from recovery.tls.channel import Channel
    from recovery.transport.file_server import FileServer
    from recovery.transport.job_token import Authenticator
    from recovery.transport.served import Served

_logger = logging.getLogger("recovery.worker")
_AT_ONCE = 2
"""Fetches under way at once; the others wait for their turn. One would leave the wire idle while it verifies."""
_CLOSE_S = 1.0
"""How long the end of the process waits until what was half fetched is removed."""

_NO_TURN = contextlib.nullcontext()

Outcome = Callable[[FetchResult | NotFetchedError], None]


class FileExchange:
    """One per process, made and used from any thread; its own begins with the first use."""

    def __init__(
        self,
        served: Callable[[str], Served | None],
        authenticator: Callable[[], Authenticator],
        channel: Callable[[], Channel | None],
    ) -> None:
        """Prepare; nothing runs yet.

        Args:
            served: finds what others ask for, by digest. May block.
            authenticator: makes what finds out which node asks.
            channel: makes the secure channel's listening side; None: plain text. May raise what is wrong with it.
        """
        self._served, self._authenticator, self._channel = served, authenticator, channel
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread
        self._server: FileServer | None = None
        self._address: str | None = None
        """Where it serves; empty: it cannot; None: it has not been asked to."""
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._fetches: set[asyncio.Task[None]] = set()
        self._ends = False
        """The process ends: nothing more is fetched."""

    def address(self, host: str) -> str:
        """Where this node serves; the port is opened at the first call. Blocks for some 50 ms then.

        Args:
            host: an address of this host that the other nodes reach.

        Returns:
            host:port; empty: it cannot serve, and has logged why.
        """
        with self._starting:
            if self._address is None:
                try:
                    loop = self._running()
                    self._address = asyncio.run_coroutine_threadsafe(self._serve(host), loop).result()
                except Exception as error:  # noqa: BLE001 - whatever it is, this node joins without giving files
                    is_known = isinstance(error, (RecoveryError, OSError))
                    reason = str(error) if is_known else f"{type(error).__name__}: {error}"
                    _logger.warning(
                        "event=copies_not_served other nodes get no checkpoints from here: %s", reason
                    )
                    self._address = ""
            return self._address

    def fetch(self, wish: FetchRequest, outcome: Outcome, *, ahead: bool = False) -> None:
        """Bring a contribution here.

        Args:
            wish: what, and from where.
            outcome: called in the exchange's thread, once, unless the process ends before; in the caller's where that cannot be started.
            ahead: somebody waits for it: it takes no turn.
        """
        try:
            with self._starting:
                loop = self._running()
        except RuntimeError as error:
            outcome(NotFetchedError((), f"what fetches cannot be started: {error}"))
            return
        loop.call_soon_threadsafe(self._begin, wish, outcome, _NO_TURN if ahead else self._turns)

    # --- its thread ----------------------------------------------------------------------------------------------------

    def _running(self) -> asyncio.AbstractEventLoop:
        """Its loop; RuntimeError: no thread can be started now."""
        if self._loop is None:
            loop = asyncio.new_event_loop()
            loop.set_default_executor(Calls(thread_name_prefix="recovery-files"))
            thread = threading.Thread(target=loop.run_forever, name="recovery-files", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                loop.close()
                raise
            # Not before it runs: a caller that waits for a loop without a thread waits for ever.
            self._loop, self._thread = loop, thread
            atexit.register(self._at_exit, os.getpid())
        return self._loop

    async def _serve(self, host: str) -> str:
        # aiohttp's server side: 40 ms, which a job on one host need not spend.
        from recovery.transport.file_server import FileServer  # noqa: PLC0415 - as above

        channel = await asyncio.to_thread(self._channel)
        server = FileServer(self._served, authenticator=self._authenticator(), channel=channel)
        port = await server.start(host)
        self._server = server
        close_in_children(server.descriptors)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _begin(self, wish: FetchRequest, outcome: Outcome, turns: AbstractAsyncContextManager[None]) -> None:
        if self._ends:
            return
        assert self._loop is not None, "this runs in it"
        work = self._loop.create_task(self._fetch(wish, outcome, turns))
        self._fetches.add(work)
        work.add_done_callback(self._fetches.discard)

    async def _fetch(
        self, wish: FetchRequest, outcome: Outcome, turns: AbstractAsyncContextManager[None]
    ) -> None:
        async with turns:
            try:
                found: FetchResult | NotFetchedError = await fetch(wish)
            except NotFetchedError as error:
                found = error
            except Exception as error:
                _logger.exception("event=fetch_failed digest=%s", wish.wanted.digest)
                found = NotFetchedError((), f"{type(error).__name__}: {error}")
        outcome(found)

    def _at_exit(self, pid: int) -> None:
        """Drop what is half fetched. Others are served on: a script may wait for its peers after this. A forked child has no thread."""
        if os.getpid() == pid:
            self._call(self._drop)

    def close(self) -> None:
        """Drop what is half fetched, cut what is served, and end the thread."""
        self._call(self._stop)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_S)
            self._loop.close()
            self._loop = None

    def _call(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        if self._loop is not None:
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                asyncio.run_coroutine_threadsafe(work(), self._loop).result(_CLOSE_S)

    async def _drop(self) -> None:
        self._ends = True
        for work in self._fetches:
            work.cancel()
        if self._fetches:
            await asyncio.wait(self._fetches)

    async def _stop(self) -> None:
        if self._server is not None:
            await self._server.stop()
        await self._drop()


def serving_host(settings: Settings) -> str:
    """At which address this node gives its files to others; empty: nobody is given anything. Looks a name up, so it may block.

    A node that others know under a loopback address has no others on another host: there nothing is served unless
    MS_CHECKPOINT_COPIES says that there are to be copies.
    """
    wanted = settings.rules.checkpoint_copies
    if settings.role is not SettingsRole.WORKER or wanted == 0:
        return ""
    host = settings.worker_host or address_towards(settings.sched_host, settings.sched_port)
    return host if wanted is not None or not _is_loopback(host) else ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # A name, or nothing.
        return not host or host == "localhost"
