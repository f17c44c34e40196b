"""Carries out what the machine asks. Runs in the connection's thread and never decides."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from typing_extensions import assert_never

from recovery import clock, end_note
from recovery.core.effects import Exit, Log, Persist, Report
from recovery.core.held import HeldCheckpoint, HeldCopy
from recovery.core.ids import Rank, RunId
from recovery.core.messages import Admitted
from recovery.core.rules import DIAL_MS
from recovery.core.worker import stimuli as s
from recovery.core.worker.effects import (
    BeginSteps,
    ConfirmRank,
    Connect,
    Disconnect,
    EndTraining,
    Fetch,
    FindCheckpoints,
    Interrupt,
    KeepDirectories,
    LeaveAsAsked,
    NoteAdmission,
    OpenGeneration,
    OpenRendezvous,
    ReplaceProcess,
    ResumeTraining,
    Retain,
    RetainCopies,
    Send,
    SetTimer,
    StopAt,
    Upload,
    WorkerEffect,
)
from recovery.core.worker.stimuli import WorkerTimer
from recovery.errors import RecoveryError, StoreVersionError
from recovery.transport.client import Client, ConnectError
from recovery.worker.checkpoint_search import Found
from recovery.worker.copy_work import CopyWork
from recovery.worker.finished_job import FinishedJob
from recovery.worker.jitter import jitter
from recovery.worker.local_store import LocalStore
from recovery.worker.object_storage import ObjectStorage
from recovery.worker.training_control import TrainingControl, Verdict

_logger = logging.getLogger("recovery.worker")
_DIAL_S = DIAL_MS / 1000
"""How long one dial may take. A living scheduler answers in milliseconds; a dropped packet is sent again after 1 s and 3 s."""


class Executor:
    """Effects to connection, timers, local store, training control and log."""

    def __init__(  # noqa: PLR0913 - the parts that it joins
        self,
        *,
        client: Client,
        training_control: TrainingControl,
        local_store: LocalStore,
        copy_work: CopyWork,
        object_storage: ObjectStorage,
        abort_timeout_ms: int,
        finished_file: Path | None,
        deliver: Callable[[s.WorkerStimulus], None],
        replace: Callable[[str, s.Hangs], None],
    ) -> None:
        """Join the parts. Created inside the loop that it serves."""
        self._client, self._training_control, self._local_store = client, training_control, local_store
        self._copy_work, self._object_storage = copy_work, object_storage
        self._deliver, self._replace = deliver, replace
        self._finished = FinishedJob(local_store.recovery_path)
        self._abort_s, self._finished_file = abort_timeout_ms / 1000, finished_file
        self._loop = asyncio.get_running_loop()
        self._timers: dict[WorkerTimer, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def carry_out(self, effect: WorkerEffect) -> None:  # noqa: PLR0912, C901 - one line per effect, nothing else
        """Do one effect."""
        match effect:
            case Send():
                self._client.send(effect.message)
            case Persist():
                self._persist(effect)
            case SetTimer():
                self._set_timer(effect)
            case Connect():
                self._start(self._connect())
            case Disconnect():
                self._start(self._disconnect())
            case Interrupt() | OpenGeneration() | OpenRendezvous() | BeginSteps():
                self._let_main_thread_know(effect)
            case StopAt() | EndTraining() | ResumeTraining() | LeaveAsAsked():
                self._at_barrier(effect)
            case ReplaceProcess():
                self._replace(effect.reason, effect.hangs)
            case NoteAdmission():
                self._join(effect.admitted)
            case FindCheckpoints():
                self._start(self._find(effect))
            case KeepDirectories():
                self._local_store.keep_directories(effect.rank)
            case ConfirmRank():
                self._training_control.confirm()
            case Retain():
                self._retain(effect)
            case Fetch() | RetainCopies():
                self._copy_work.carry_out(effect, self._local_store.new_request, self._deliver)
            case Upload():
                self._object_storage.upload(effect.checkpoint)
            case Log():
                _log(effect)
            case Exit():
                self._exit(effect)
            case _:
                assert_never(effect)

    def _let_main_thread_know(self, effect: Interrupt | OpenGeneration | OpenRendezvous | BeginSteps) -> None:
        match effect:
            case Interrupt():
                self._training_control.interrupt(effect.generation, effect.reason)
            case OpenGeneration():
                self._training_control.open(effect.plan)
            case OpenRendezvous():
                self._training_control.open_rendezvous(effect.generation, effect.address)
            case BeginSteps():
                self._training_control.begin_steps(effect.generation)
            case _:
                assert_never(effect)

    def _persist(self, persist: Persist) -> None:
        self._copy_work.note_saved(persist.records)
        self._object_storage.note_saved(persist.records)
        self._local_store.submit(persist)

    def _retain(self, retain: Retain) -> None:
        self._training_control.note_committed(
            retain.step,
            retain.pinned,
            durable_step=retain.durable_step,
            pinned_in_memory=retain.pinned_in_memory,
        )
        self._object_storage.committed(retain.step if retain.durable_step is None else retain.durable_step)

    def _join(self, admitted: Admitted) -> None:
        self._finished.was_admitted(admitted.job, admitted.run)
        _logger.info(
            "event=admitted incarnation=%d rank=%s run=%d",
            admitted.incarnation,
            "unassigned" if admitted.rank is None else admitted.rank,
            admitted.run,
        )

    def _at_barrier(self, effect: StopAt | EndTraining | ResumeTraining | LeaveAsAsked) -> None:
        match effect:
            case StopAt() if self._training_control.drain_unsupported_reason and not effect.ends_training:
                why = self._training_control.drain_unsupported_reason
                self._deliver(s.Positioned(effect.generation, effect.step, step=effect.step, obstacle=why))
            case StopAt():
                within_ms = effect.leaves_within_ms
                stop_point = self._training_control.stop_point
                stop_point.leave_by_ms = clock.monotonic_ms() + within_ms if within_ms else None
                # First: where the loop comes to its end meanwhile, the main thread says so with its last step, which `passed` may not be.
                is_over = stop_point.is_over
                passed, stops = self._training_control.stop_at(
                    effect.generation, effect.step, ends_training=effect.ends_training
                )
                self._deliver(
                    s.Positioned(effect.generation, passed, stops, step=effect.step, is_over=is_over)
                )
            case EndTraining():
                self._end_training(effect)
            case ResumeTraining():
                self._training_control.let_go()
            case LeaveAsAsked():
                self._training_control.leave_as_asked()
            case _:
                assert_never(effect)

    def _end_training(self, end: EndTraining) -> None:
        passed = self._training_control.end_at(end.generation, end.step, end.reason)
        if passed:
            # It was away when the others agreed. All go back, and the next plan says where training ends.
            reason = f"it has trained to step {passed}, behind step {end.step}, at which training ends"
            self._deliver(s.DataPlaneBroke(end.generation, passed, reason))

    def _exit(self, effect: Exit) -> None:
        """Let the main thread end the process; where it cannot (stuck in a call) the process is ended from here."""
        if not effect.code:
            self._note_finished()
            self._object_storage.end_training()
        self._training_control.finish(Verdict(effect.code, effect.reason))
        if effect.code:
            self._loop.call_later(self._abort_s, self.force, effect)

    def _note_finished(self) -> None:
        """Before the script goes on: whatever it does from now on, its launcher knows that training was over."""
        if self._finished_file is None:
            return
        try:
            end_note.note_finished(self._finished_file)
        except OSError as error:
            _logger.warning(
                "event=end_not_noted %s cannot be written (%s): a failure of the script from now on is taken for one of training",
                self._finished_file,
                error.strerror,
            )

    @staticmethod
    def force(effect: Exit) -> None:
        """End the process from here: its main thread does not."""
        code = Verdict(effect.code, effect.reason).exit_code
        _logger.error(
            "event=exit_forced code=%d the main thread did not end within MS_ABORT_TIMEOUT; %s: %s",
            code,
            effect.code,
            effect.reason,
        )
        end_note.note_exit(code)
        os._exit(code)

    def release(self, persist: Persist) -> None:
        """The worker's own write is durable: what promised it may leave."""
        for step in persist.then:
            assert isinstance(step, Report), "a worker answers nobody"
            self._client.send(step.message)
            self._deliver(s.ReportStored(step.message.request_id))

    def _start(self, work: object) -> None:
        assert asyncio.iscoroutine(work), "work of this class"
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Whatever fails in one of these, the machine is given a result: it waits for nothing else, and a worker that is given none neither
    # dials again nor says that it is ready.

    async def _connect(self) -> None:
        try:
            # Before the dial: a worker that is connected registers at once, and says where its files can be fetched.
            serves = await asyncio.to_thread(self._copy_work.address)
            await self._client.connect(_DIAL_S)
        except ConnectError as error:
            finished = await self._look_for_end()
            failed = s.ConnectFailed(str(error), jitter(), finished=finished, not_let_in=error.not_let_in)
            self._deliver(failed)
        except Exception as error:
            _logger.exception("event=dial_failed this worker dials again")
            self._deliver(s.ConnectFailed(_shown(error), jitter()))
        else:
            self._deliver(s.Connected(serves))

    async def _look_for_end(self) -> str:
        try:
            return await self._finished.check()
        except Exception:
            _logger.exception("event=finished_job_not_looked_for")
            return ""

    async def _disconnect(self) -> None:
        try:
            await self._client.close()
        except Exception:
            _logger.exception("event=close_failed the connection counts as closed")
        self._deliver(s.Disconnected("closed by this side", jitter()))

    async def _find(self, find: FindCheckpoints) -> None:
        try:
            if find.offer is not None:
                found = await asyncio.to_thread(self._local_store.find_offered, find.job, find.offer)
            else:
                found = await asyncio.to_thread(
                    self._local_store.find_checkpoints, find.job, find.run, find.rank, find.past
                )
        except StoreVersionError as error:
            self._deliver(s.StoreRefused(self._local_store.new_request(), error.code, sentence_of(error)))
            return
        except Exception as error:  # noqa: BLE001 - a line says what it was
            # A worker that cannot search holds nothing; the plan says what follows from that.
            _say("event=checkpoints_not_found %s", error)
            found = Found()
        found = await self._bring(find, found)
        request, offered = self._local_store.new_request(), find.rank if find.offer is not None else None
        past = found.past
        if past is not None:
            of_past = await self._find_copies(past.job, past.run, past.rank, past.held)
            past = msgspec.structs.replace(past, copies=of_past)
        copies = await self._find_copies(find.job, find.run, find.rank, found.held)
        self._deliver(
            s.CheckpointsFound(
                request,
                find.search_id,
                found.held,
                found.passed_over,
                past,
                rank=offered,
                copies=copies,
            )
        )

    async def _bring(self, find: FindCheckpoints, found: Found) -> Found:
        """Add what object storage has of this rank and its disk has not."""
        rank = find.rank if find.offer is None else find.offer.rank
        if rank is None or not self._object_storage.is_on:
            return found
        run = find.run if find.offer is None else find.offer.run
        try:
            brought = await asyncio.to_thread(
                self._object_storage.bring, find.job, run, rank, found.held, find.began
            )
        except Exception as error:  # noqa: BLE001 - a line says what it was
            _say("event=store_not_asked %s", error)
            return found
        held = sorted(
            (*found.held, *brought),
            key=lambda checkpoint: (checkpoint.step, checkpoint.generation),
            reverse=True,
        )
        return msgspec.structs.replace(found, held=tuple(held))

    async def _find_copies(
        self, job: str, run: RunId, rank: Rank | None, own: tuple[HeldCheckpoint, ...]
    ) -> tuple[HeldCopy, ...]:
        try:
            return await asyncio.to_thread(self._copy_work.held, job, run, rank, own)
        except Exception as error:  # noqa: BLE001 - a line says what it was
            # As above: without them this node is no source, and that is all.
            _say("event=copies_not_found %s", error)
            return ()

    def _set_timer(self, effect: SetTimer) -> None:
        older = self._timers.pop(effect.timer, None)
        if older is not None:
            older.cancel()
        delay_s = max(0, effect.at_ms - clock.monotonic_ms()) / 1000
        self._timers[effect.timer] = self._loop.call_later(delay_s, self._due, effect.timer)

    def _due(self, timer: WorkerTimer) -> None:
        del self._timers[timer]
        self._deliver(s.TimerFired(timer, jitter()))


def _log(line: Log) -> None:
    _logger.log(logging.WARNING if line.warning else logging.INFO, "event=%s %s", line.event, line.text)


def _say(line: str, error: Exception) -> None:
    """One line for what a disk or a storage may do, and where a fault of the program stands for all else."""
    _logger.warning(line, _shown(error), exc_info=None if _is_known(error) else error)


def _shown(error: Exception) -> str:
    return str(error) if _is_known(error) else f"{type(error).__name__}: {error}"


def _is_known(error: Exception) -> bool:
    return isinstance(error, (RecoveryError, OSError))


def sentence_of(error: RecoveryError) -> str:
    """Without the code, which goes beside it."""
    return str(error).removeprefix(f"{error.code}: ")
