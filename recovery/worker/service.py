"""The worker's loop, in a daemon thread of the training process. Everything that happens goes through one queue into the machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable

from recovery import clock, process_identity, thread_stacks
from recovery.config import Settings, SettingsRole
from recovery.core.effects import Exit
from recovery.core.ids import NodeId, RequestId
from recovery.core.messages import FromScheduler, Interrupt, Role
from recovery.core.principals import PrincipalKind
from recovery.core.worker import stimuli as s
from recovery.core.worker.connection import Identity
from recovery.core.worker.effects import NoteAdmission, WorkerEffect
from recovery.core.worker.machine import WorkerMachine
from recovery.core.worker.stimuli import WorkerTimer
from recovery.errors import ProcessError, RecoveryError
from recovery.objects.uploads import Part
from recovery.store import job_token_file
from recovery.tls.process_channels import channel_of
from recovery.tls.side import Side
from recovery.transport.access import Access
from recovery.transport.blocking_calls import Calls
from recovery.transport.client import Client
from recovery.transport.job_token import Authenticator, Caller, JobToken
from recovery.worker.copy_work import CopyWork
from recovery.worker.exec_in_place import close_in_children, replace_process, take_hangs, take_token
from recovery.worker.executor import Executor, sentence_of
from recovery.worker.file_exchange import FileExchange, serving_host
from recovery.worker.held_copies import Copies
from recovery.worker.jitter import jitter
from recovery.worker.local_store import LocalStore
from recovery.worker.object_storage import ObjectStorage
from recovery.worker.phase_clock import PhaseClock
from recovery.worker.program import program
from recovery.worker.stimulus_queue import StimulusQueue
from recovery.worker.training_control import TrainingControl, Verdict

_logger = logging.getLogger("recovery.worker")
_TICK_S = 0.25
"""How often the thread proves that the process runs. A pause is noticed when it exceeds half the lease, and a second at least."""


class WorkerService:
    """One per process. The main thread uses `training_control`, `local_store` and `post`; the rest belongs to the thread."""

    _broken: ProcessError | None = None
    """Why its thread has ended."""

    def __init__(self, settings: Settings, *, starts_again: bool = False) -> None:
        """Prepare; `start` begins.

        Args:
            settings: role worker or server.
            starts_again: this process may start its program again, by exec, when its generation ends.

        Raises:
            RecoveryPathError: there is no token in the recovery path, and none can be made.
        """
        assert settings.node_id is not None, (
            "a node has an id, drawn by the caller if the environment gave none"
        )
        self.node_id: NodeId = settings.node_id
        self._settings, rules = settings, settings.rules
        self._channel = channel_of(settings.secure_channel, Side.CLIENT)
        self.step_log, self.memory = settings.step_log, settings.memory
        self.recovery_enabled, self.live_rollback = rules.recovery_enabled, rules.live_rollback
        self.training_control = TrainingControl(
            pause_limit_ms=max(1_000, rules.lease_ms // 2), on_pause=self._on_pause
        )
        self.phases = PhaseClock()
        self.local_store = LocalStore(
            settings.recovery_path,
            self.node_id,
            accept_without_wal=settings.store_without_wal,
            replaces=settings.replaces,
            scheduler=(settings.sched_host, settings.sched_port),
        )
        self.on_admitted: Callable[[int | None], None] = lambda rank: None
        """Called, in the connection's thread, when this process is admitted: with the rank that its id had before, if any."""
        self.host = settings.worker_host
        self.progress: Callable[[], s.StepsDone] | None = None
        """Where training stands; asked at every heartbeat."""
        role = Role.SERVER if settings.role is SettingsRole.SERVER else Role.WORKER
        identity = Identity(
            node_id=self.node_id,
            role=role,
            host=settings.worker_host,
            pid=os.getpid(),
            process=process_identity.own(),
            standby=settings.standby,
            replaces=settings.replaces,
            starts_again=starts_again,
            program=program(settings) if role is Role.WORKER else None,
            stores=bool(settings.checkpoint_store) and rules.recovery_enabled,
        )
        self.machine = WorkerMachine(identity, rules)
        given, path = settings.job_token, settings.recovery_path
        token = JobToken.of(job_token_file.token_of(given, path))
        stored = job_token_file.source_of(given, path)
        self._access = Access(Caller(PrincipalKind.NODE, self.node_id, token, stored), self._channel)
        secure, copies = settings.secure_channel, self._copies(settings)
        self._copy_work = CopyWork(
            copies,
            FileExchange(
                copies.served if copies is not None else lambda digest: None,
                lambda: Authenticator(token, stored=stored),
                lambda: channel_of(secure, Side.SERVER),
            ),
            world_size=rules.worker_count,
            access=self._access,
            host=lambda: serving_host(settings),
            still_owns_rank=self.training_control.still_owns_rank,
        )
        self.object_storage = self._storage(settings.checkpoint_store, copies)
        self._client: Client
        self._executor: Executor
        self._loop: asyncio.AbstractEventLoop
        self._up = threading.Event()

    def _storage(self, url: str, copies: Copies | None) -> ObjectStorage:
        control = self.training_control
        return ObjectStorage(
            url, copies, control.still_owns_rank, control.spare_stored, self._not_uploaded, self._uploaded
        )

    def _not_uploaded(self, step: int, reason: str) -> None:
        self.post(s.SaveFailed(self.new_request(), step, reason, uploading=True))

    def _uploaded(self, part: Part, is_there: bool) -> None:
        self.post(s.Uploaded(self.new_request(), part.step, part.digest, is_there))

    def _copies(self, settings: Settings) -> Copies | None:
        copies = self.local_store.copies
        if copies is not None:
            copies.use_memory(settings.memory, lambda: self.training_control.job_is_over)
        return copies

    def start(self) -> None:
        """Start the thread; returns when its loop runs.

        Raises:
            ProcessError: it ended before that, or the system gives none.
        """
        thread_stacks.write_when_asked()
        try:
            threading.Thread(target=self._run, name="recovery-connection", daemon=True).start()
        except RuntimeError as error:
            raise ProcessError("NO_THREAD", reason=error) from error
        self._up.wait()
        if self._broken is not None:
            raise self._broken

    @property
    def compares_replicas(self) -> bool:
        """Do this rank's saves say what all ranks must have alike (MS_COMPARE_REPLICAS)?"""
        return self._settings.compares_replicas

    @property
    def is_up(self) -> bool:
        """Does its thread take what is posted?"""
        return self._up.is_set() and self._broken is None

    def post(self, stimulus: s.WorkerStimulus) -> None:
        """Hand a stimulus to the machine, from any thread."""
        # Of a thread that is broken the verdict tells, and the caller that posts goes on to read it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deliver, stimulus)

    @property
    def failed_saves_max(self) -> int:
        """Saves on the disk that may fail in a row; 0: any number."""
        return self._settings.failed_saves_max

    @property
    def control_inode(self) -> int | None:
        """Inode of the connection to the scheduler, if there is one."""
        return self._client.socket_inode

    @staticmethod
    def new_request() -> RequestId:
        """A fresh request id."""
        return LocalStore.new_request()

    # --- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - logged there, and the process ends by it
            self._break_off(error)

    def _break_off(self, error: BaseException) -> None:
        """A fault of this program: without this thread nobody would be told anything, and the main thread would wait for ever."""
        broken = self._broken = _noted_fault(error)
        was_up = self._up.is_set()
        self._up.set()
        if was_up and not self.training_control.job_is_over:
            ended = Exit(broken.code, sentence_of(broken))
            self.training_control.finish(Verdict(ended.code, ended.reason))
            threading.Event().wait(self._settings.rules.abort_timeout_ms / 1000)
            Executor.force(ended)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(Calls(thread_name_prefix="recovery-call"))
        self._client = Client(
            host=self._settings.sched_host,
            port=self._settings.sched_port,
            rules=self._settings.rules,
            on_message=self._on_message,
            on_lost=lambda reason: self._deliver(s.Disconnected(reason, jitter())),
            access=self._access,
        )
        self._executor = Executor(
            client=self._client,
            training_control=self.training_control,
            local_store=self.local_store,
            copy_work=self._copy_work,
            object_storage=self.object_storage,
            abort_timeout_ms=self._settings.rules.abort_timeout_ms,
            finished_file=self._settings.finished_file,
            deliver=self._deliver,
            replace=self.replace_process,
        )
        self._stimuli = StimulusQueue(
            lambda stimulus: self.machine.handle(stimulus, clock.monotonic_ms()),
            self._carry_out,
            self._end_by_fault,
        )
        self.local_store.attach(self._loop, self._executor.release, self._on_store_failure)
        close_in_children(lambda: [self._client.fileno] if self._client.fileno is not None else [])
        self._deliver(s.Started(self.new_request(), take_token(), take_hangs()))
        self._up.set()
        # Until the process ends: the thread is a daemon.
        while True:
            self.training_control.tick()
            self.phases.tick(_TICK_S)
            await asyncio.sleep(_TICK_S)

    def _deliver(self, stimulus: s.WorkerStimulus) -> None:
        if self.progress is not None and _asks_for_progress(stimulus):
            self._stimuli.deliver(self.progress())
        self._stimuli.deliver(stimulus)

    def _carry_out(self, effect: WorkerEffect) -> None:
        self._executor.carry_out(effect)
        if isinstance(effect, NoteAdmission):
            self.on_admitted(effect.admitted.rank)

    def _end_by_fault(self, stimulus: s.WorkerStimulus, error: Exception) -> None:
        """A fault of this program in one stimulus: the thread still speaks, but the machine takes nothing more."""
        broken = _noted_fault(error, f"{type(stimulus).__name__}: ")
        self._executor.carry_out(Exit(broken.code, sentence_of(broken)))

    def _on_message(self, message: FromScheduler) -> None:
        if not self.host and self._client.local_host:
            self.host = self._client.local_host
        self._deliver(s.MessageReceived(message))

    def _on_pause(self, paused_ms: int) -> None:
        self.post(s.PauseNoticed(paused_ms))

    def _on_store_failure(self, error: RecoveryError) -> None:
        _logger.warning("event=store_failed %s", error)

    def replace_process(self, reason: str, hangs: s.Hangs | None = None) -> None:
        """Start this process's command line again, from whichever thread; pid, rank and incarnation stay. Does not return.

        Args:
            reason: for the log.
            hangs: what the next program takes over; None: the main thread did not hang, what was counted stays.
        """
        admitted = self.machine.admitted
        assert admitted is not None, "only a member that trained replaces itself"
        _logger.warning("event=process_replaced reason=%r; pid, rank and incarnation stay", reason)
        replace_process(admitted.token, self.machine.hangs if hangs is None else hangs)


def _asks_for_progress(stimulus: s.WorkerStimulus) -> bool:
    """Does the machine say or write now how far this rank is?"""
    if isinstance(stimulus, s.TimerFired):
        return stimulus.timer in (WorkerTimer.HEARTBEAT, WorkerTimer.ABORT)
    return isinstance(stimulus, s.MessageReceived) and isinstance(stimulus.message, Interrupt)


def _noted_fault(error: BaseException, during: str = "") -> ProcessError:
    broken = ProcessError("WORKER_BROKEN", reason=f"{during}{type(error).__name__}: {error}")
    _logger.critical("event=worker_broken %s", broken, exc_info=error)
    return broken
