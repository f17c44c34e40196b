"""The scheduler's loop: sockets, timers and the writer's reports go through one queue, the event loop, into the machine."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import socket
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from recovery import clock
from recovery.config import Settings
from recovery.core.converter import UNREADABLE
from recovery.core.effects import Persist
from recovery.core.ids import ConnectionId, ResumeToken
from recovery.core.messages import FromNode, Register
from recovery.core.records import EventRecord, JobState
from recovery.core.scheduler import barrier_ends, leave_requests
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.machine import SchedulerMachine
from recovery.core.scheduler.stimuli import (
    ConnectionLost,
    DrainAsked,
    MessageReceived,
    SchedulerStimulus,
    StopAsked,
    TimerFired,
)
from recovery.core.scheduler.views import checkpoints_view, drain_view, generations_view, job_view, lost_view
from recovery.errors import (
    Cause,
    JobFailedError,
    ProcessError,
    RecoveryError,
    Row,
    StoreError,
    StoreLostError,
    StoreWaitError,
)
from recovery.scheduler import side_thread
from recovery.scheduler.executor import Executor
from recovery.scheduler.history_page import HistoryPage
from recovery.scheduler.metrics_page import MetricsPage
from recovery.scheduler.process_watch import when_gone
from recovery.scheduler.startup import load_machine, open_store, raise_descriptor_limit
from recovery.scheduler.trace_export import TraceExport
from recovery.store.job_token_file import source_of, token_of
from recovery.store.repository import SchedulerStore
from recovery.store.writer import QUEUE_MAX, Writer
from recovery.tls.process_channels import channel_of
from recovery.tls.side import Side
from recovery.transport.inspection_server import Inspection, Route, json_route
from recovery.transport.job_token import Authenticator, JobToken
from recovery.transport.server import Server

if TYPE_CHECKING:
    from recovery.tls.channel import Channel

_logger = logging.getLogger("recovery.scheduler")


class _DrainRequest(msgspec.Struct, frozen=True):
    """The body of `POST /drain`."""

    target: str
    """A node id, or a host as the nodes' addresses name it."""


_drain_requests = msgspec.json.Decoder(_DrainRequest)
_RECENT_EVENTS = 1_000
"""Events of this process that can be asked for over HTTP: a page; all events are in the store."""
_CLOSE_S = 5.0
"""How long the writer may take for what is queued when the process ends."""
_ANSWERS_S = 0.2
"""How long what a barrier has come to is on its way, and the pause between two looks at one."""


def serve(settings: Settings, *, with_pid: int | None = None) -> None:
    """Serve one job until it ends, or until SIGTERM or SIGINT. Blocks.

    Args:
        settings: of a scheduler.
        with_pid: a process of this host to end with, as if SIGTERM had come; None: of nobody.

    Raises:
        JobFailedError: the job ended without success; a subclass says in which way.
        SecureChannelError, StoreError, RecoveryPathError, ProcessError, RegistrationError: it could not start, or lost its store.
    """
    raise_descriptor_limit()
    # Before the store, so that wrong certificates leave no trace of a job.
    channel = channel_of(settings.secure_channel, Side.SERVER)
    store = open_store(settings)
    try:
        machine = load_machine(store, settings)
        asyncio.run(_Service(settings, machine, store, with_pid, channel).run())
    except RuntimeError as error:
        # Python has no class of its own for it.
        if "start new thread" not in str(error):
            raise
        raise ProcessError("NO_THREAD", reason=error) from error
    finally:
        if store is not None:
            store.close()


class _Service:
    def __init__(
        self,
        settings: Settings,
        machine: SchedulerMachine,
        store: SchedulerStore | None,
        with_pid: int | None,
        channel: Channel | None = None,
    ) -> None:
        self._channel = channel
        self._settings, self._machine, self._store, self._with_pid = settings, machine, store, with_pid
        self._held: deque[SchedulerStimulus] = deque()
        """Came while the store's queue was full: losses and timers, since messages wait in their connections."""
        self._holding = self._over = self._is_asked_to_stop = False
        self._recent: deque[dict[str, object]] = deque(maxlen=_RECENT_EVENTS)
        self._ended: asyncio.Future[RecoveryError | None]
        self._server: Server
        self._writer: Writer | None
        self._executor: Executor
        self._loop: asyncio.AbstractEventLoop

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        given, path = self._settings.job_token, self._settings.recovery_path
        token = JobToken.of(token_of(given, path))
        if token is None:
            _logger.warning(
                "event=network_trusted no peer proves its identity: each that reaches this port can see, hold up and end the job. "
                "MS_JOB_TOKEN is %s; give every process the same one, or MS_RECOVERY_PATH with MS_ENABLE_RECOVERY=1.",
                "off" if given is not None else "unset",
            )
        names = (self._settings.sched_host, socket.gethostname())
        authenticator = Authenticator(
            token, frozenset(name.lower().rstrip(".") for name in names), source_of(given, path)
        )
        # A name server that is silent takes 10 s and more: nobody waits for it, at the end neither.
        side_thread.start("own-name", socket.getfqdn, authenticator.is_also)
        pages = (
            ("/metrics", MetricsPage(self._machine.state, path).answer),
            ("/history", HistoryPage(path).answer),
        )
        server = self._server = Server(
            authenticator=authenticator,
            rules=self._settings.rules,
            on_message=self._on_message,
            on_lost=self._on_lost,
            inspection=Inspection(self._routes(), (("/drain", self._drain),), pages),
            channel=self._channel,
        )
        port = await server.start(self._settings.sched_host, self._settings.sched_port)
        if self._channel is None and not server.on_loopback:
            _logger.warning(
                "event=channel_not_secured address=%s:%d connections are neither encrypted nor authenticated by certificates: "
                "each peer that reaches this port can listen. Set MS_ENABLE_SSL=1 (recovery certs init DIR makes certificates), or trust the network.",
                self._settings.sched_host,
                port,
            )
        _logger.info(
            "event=listening address=%s:%d job=%s recovery_path=%s",
            self._settings.sched_host,
            port,
            self._machine.state.job.job,
            self._settings.recovery_path,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal, number)
        if self._with_pid is not None:
            self._end_with(self._with_pid)
        writer = self._writer = self._start_writer()
        self._executor = Executor(
            server=server,
            writer=writer,
            on_timer=lambda timer: self._deliver(TimerFired(timer)),
            on_gone=self._deliver,
            on_exit=self._on_exit,
        )
        sending = self._send_traces()
        try:
            self._carry_out(self._machine.start(clock.monotonic_ms()))
            error = await self._ended
        finally:
            sending.cancel()
            self._executor.stop()
            self._over = True
            # What is decided is written, and told, before the connections close: nobody else would tell how the job has ended.
            await self._close_writer()
            await server.stop()
        if error is not None:
            raise error

    def _send_traces(self) -> asyncio.Task[None]:
        path, wanted = self._settings.recovery_path, self._settings.sends_traces
        return asyncio.create_task(TraceExport(self._machine.state, path if wanted else None).keep())

    async def _close_writer(self) -> None:
        writer = self._writer
        if writer is not None and not await asyncio.to_thread(writer.close, _CLOSE_S):
            _logger.warning(
                "event=store_not_finished the last rows of the scheduler were not written within %g s",
                _CLOSE_S,
            )

    def _routes(self) -> tuple[tuple[str, Route], ...]:
        """What can be asked over HTTP."""
        state = self._machine.state
        return (
            ("/status", json_route(lambda: job_view(state, clock.monotonic_ms()))),
            ("/lost", json_route(lambda: lost_view(state, clock.monotonic_ms()))),
            ("/generations", json_route(lambda: generations_view(state))),
            ("/checkpoints", json_route(lambda: checkpoints_view(state))),
            ("/drain", json_route(lambda: drain_view(state))),
            ("/events", json_route(lambda: list(self._recent))),
        )

    def _drain(self, body: bytes) -> tuple[int, object]:
        """A person wants ranks to be handed over: 202 and the nodes that go, or why not."""
        try:
            asked = _drain_requests.decode(body)
        except UNREADABLE as error:
            return 400, {"refused": str(error)}
        state = self._machine.state
        nodes, host = leave_requests.named(state, asked.target)
        if not nodes:
            return 409, {"refused": "is neither a node nor the address of a worker's host", "unknown": True}
        obstacle = barrier_ends.why_not(state, nodes, host)
        if not obstacle and self._holding:
            obstacle = "the scheduler's store is behind (the disk of MS_RECOVERY_PATH)"
        if obstacle:
            return 409, {"refused": obstacle, "unknown": False}
        self._deliver(DrainAsked(nodes, host, f"recovery drain {asked.target}"))
        return 202, drain_view(state)

    def _end_with(self, pid: int) -> None:
        """Nobody asks for it: the event log calls this no stop on purpose."""
        when_gone(pid, lambda: self._stop(signal.SIGTERM))

    def _start_writer(self) -> Writer | None:
        if self._store is None:
            return None
        return Writer(
            self._store,
            on_durable=lambda ticket: self._from_thread(self._release, ticket),
            on_failure=lambda error: self._from_thread(self._on_store_failure, error),
            wall_ms=clock.wall_ms,
        )

    def _from_thread(self, call: object, argument: object) -> None:
        """Another thread speaks; the loop may be gone already when the process ends."""
        assert callable(call), "a method of this class"
        try:
            self._loop.call_soon_threadsafe(call, argument)
        except RuntimeError:
            _logger.debug("the loop has ended, what a thread reports is dropped")

    def _deliver(self, stimulus: SchedulerStimulus) -> None:
        self._held.append(stimulus)
        self._take_held()

    def _take_held(self) -> None:
        """Let the machine take what has come, unless the store's queue is full: then this process pauses until it is not.

        Before, never in the middle: what a stimulus has changed in the machine is carried out whole.
        """
        while self._held and not self._crowded() and not self._over:
            stimulus = self._held.popleft()
            try:
                self._carry_out(self._machine.handle(stimulus, clock.monotonic_ms()))
            except Exception as error:  # noqa: BLE001 - it ends the process, with the code of such a fault
                self._break_off(stimulus, error)
        crowded = self._crowded()
        if crowded and not self._holding:
            self._server.pause_delivery()
            _logger.warning(
                "event=store_behind %d rows wait to be written: no message, loss or timer is looked at until they are. "
                "Listing at the disk of MS_RECOVERY_PATH.",
                QUEUE_MAX,
            )
        elif self._holding and not crowded:
            self._server.resume_delivery()
            _logger.info("event=store_keeps_up what had to wait is looked at again")
        self._holding = crowded

    def _break_off(self, stimulus: SchedulerStimulus, error: Exception) -> None:
        """A fault of this program: what is half changed is not served on. The next process begins with what is written."""
        self._over = True
        broken = ProcessError(
            "SCHEDULER_BROKEN", stimulus=type(stimulus).__name__, reason=f"{type(error).__name__}: {error}"
        )
        broken.__cause__ = error
        _logger.critical("event=scheduler_broken %s", broken, exc_info=error)
        self._finish(broken)

    def _crowded(self) -> bool:
        return self._writer is not None and self._writer.crowded

    def _carry_out(self, effects: list[SchedulerEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                events = (record for record in effect.records if isinstance(record, EventRecord))
                self._recent.extend({"wall_ms": clock.wall_ms(), "event": event} for event in events)
            self._executor.carry_out(effect)

    def _release(self, ticket: object) -> None:
        assert isinstance(ticket, Persist), "only effects are submitted"
        self._executor.release(ticket)
        if self._holding:
            self._take_held()

    def _on_message(self, connection: ConnectionId, message: FromNode, peer: str) -> None:
        token = ResumeToken(secrets.token_hex(16) if isinstance(message, Register) else "")
        principal = self._server.principal(connection)
        self._deliver(MessageReceived(connection, message, peer, token, principal))

    def _on_lost(self, connection: ConnectionId, reason: str) -> None:
        self._deliver(ConnectionLost(connection, reason))

    def _on_store_failure(self, error: StoreError) -> None:
        if isinstance(error, StoreWaitError):
            _logger.warning("%s %s", error.log_event, error)
            return
        _logger.error("event=store_failed %s", error)
        self._finish(error)

    def _on_exit(self, code: str, reason: str) -> None:
        if code == "STORE_LOST":
            self._finish(StoreLostError(path=str(self._settings.recovery_path), found=reason))
        else:
            self._finish(JobFailedError(code, reason=reason) if code else None)

    def _on_signal(self, number: int) -> None:
        first, self._is_asked_to_stop = not self._is_asked_to_stop, True
        if first and number == signal.SIGTERM and self._machine.state.job.state is JobState.RUNNING:
            # Workers and launchers may have had the same signal: what saves a last step needs this process.
            self._loop.call_later(leave_requests.STOP_FOLLOWS_MS / 1000, self._stop_behind_a_barrier, number)
        else:
            self._stop_on_purpose(number)

    def _stop_behind_a_barrier(self, number: int) -> None:
        under_way = self._machine.state.barrier
        if under_way is not None and under_way.is_open:
            self._loop.call_later(_ANSWERS_S, self._stop_behind_a_barrier, number)
        else:
            self._loop.call_later(0 if under_way is None else _ANSWERS_S, self._stop_on_purpose, number)

    def _stop_on_purpose(self, number: int) -> None:
        if not self._ended.done():
            self._deliver(StopAsked(signal.Signals(number).name))
        self._stop(number)

    def _stop(self, number: int) -> None:
        name = signal.Signals(number).name
        running = self._machine.state.job.state in (JobState.RUNNING, JobState.INTERRUPTED)
        hint = "; workers train on, relaunch it with the same environment" if running else ""
        _logger.warning("event=scheduler_stopped reason=%s%s", name, hint)
        self._finish(StoppedBySignal(number))

    def _finish(self, error: RecoveryError | None) -> None:
        if not self._ended.done():
            self._ended.set_result(error)


class StoppedBySignal(RecoveryError):  # noqa: N818 - a person's wish, not an error
    """A person or a system ended this process; its exit code is 128 + the signal's number."""

    rows = (Row("STOPPED", 1, Cause.PERMANENT, "stopped by {signal}"),)

    def __init__(self, number: int) -> None:
        """Keep the signal's number."""
        self.number = number
        super().__init__(signal=signal.Signals(number).name)
