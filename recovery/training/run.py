"""The run loop: one training function, entered again for every generation."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar, overload

from recovery import config
from recovery.core.ids import Generation
from recovery.core.worker import stimuli as s
from recovery.errors import ROWS, GenerationInterrupted, UsageError
from recovery.training import bootstrap, current, early_exit, framework_hooks, last_uploads, process_end
from recovery.training.early_exit import EarlyExit
from recovery.training.live_rollback import LiveRollback
from recovery.training.session import Session
from recovery.training.stop_signals import StopSignalReceived, StopSignals, signal_number
from recovery.worker.service import WorkerService
from recovery.worker.training_control import Verdict

_Result = TypeVar("_Result")


@overload
def run(function: Callable[[Session], _Result] | Callable[[], _Result]) -> Callable[[], _Result]: ...


@overload
def run(
    *, warm_up: Callable[[], object] | None = None
) -> Callable[[Callable[[Session], _Result] | Callable[[], _Result]], Callable[[], _Result]]: ...


def run(function: Any = None, *, warm_up: Callable[[], object] | None = None) -> Any:
    """Make a training function recoverable. The decorated function takes no arguments; the original takes the session, or none either.

    Called in a process with MS_ROLE=MS_SCHED it serves as the scheduler until the job ends and then exits. Called in a worker it
    enters the function once per generation: at the start, and again after every rollback. It returns what the function
    returns once all ranks are done.

    Args:
        function: takes a `Session` or nothing (`current_session` gives it); builds everything it needs again at every entry.
        warm_up: called once, while this process waits to be admitted: load here what every entry needs (the data set).

    Returns:
        The recoverable function, without arguments; without `function`, a decorator that makes one.

    Raises:
        SystemExit: the process must end: wrong settings, refused, fenced, the job failed. One clear line says why; each reason
            has its own exit code (docs/reference/settings.md, docs/reference/errors.md).
    """
    if function is None:
        return functools.partial(run, warm_up=warm_up)

    @functools.wraps(function)
    def recoverable() -> Any:
        with process_end.one_clear_line():
            _check_is_first(function)
            settings = bootstrap.begin()
            result = RunLoop(settings, warm_up).run(function)
            _trained[_job_of(settings)] = function.__name__
            return result

    # It takes no arguments: with the wrapped signature pytest would look for a fixture "session".
    del recoverable.__wrapped__
    return recoverable


_trained: dict[tuple[object, ...], str] = {}
"""Training functions that this process has come to the end of, by the job."""


def _job_of(settings: config.Settings) -> tuple[object, ...]:
    return settings.recovery_path, settings.sched_host, settings.sched_port


def _check_is_first(function: Callable[..., Any]) -> None:
    """A second function would find a job that has finished: it must not be passed over as if it had trained.

    Raises:
        UsageError: this process has trained one already.
    """
    trained = _trained.get(_job_of(config.load())) if _trained else None
    if trained is not None:
        raise UsageError(
            field=f"{function.__name__}()",
            reason=f"is a second training function behind {trained}(), with which the job has finished: nothing was trained",
            next_step="Do both in one function, or start a job of its own for it, with another MS_RECOVERY_PATH.",
        )


class RunLoop:
    """A worker's main thread: what it trains is entered again for every generation, be it a function or a script."""

    def __init__(self, settings: config.Settings, warm_up: Callable[[], object] | None = None) -> None:
        """Prepare; `begin` joins the cluster.

        Args:
            settings: of a worker or a server.
            warm_up: as for `run`.
        """
        self._settings, self._service = settings, WorkerService(settings)
        self._pid = os.getpid()
        self._asked_early = False
        """SIGTERM came before there was anybody to tell of it."""
        self._live = LiveRollback(self._service)
        self.session: Session | None = None
        """Of this entry, or of the last one."""
        self._generation = 0
        self._warm_ups = [self._service.local_store.warm_up, *([warm_up] if warm_up else [])]
        self._entry_states: list[tuple[Callable[[Any], None], Any]] = []
        self._stop_signals = StopSignals(self._ask_to_depart)

    def run(self, function: Callable[..., Any]) -> Any:
        """Train by a function. Returns what it returned once all ranks were done; None where this process was not needed."""
        with self.leaving():
            self.begin()
            outcome = self._train(function)
            # In here, so that a signal which comes before is caught here; one that comes later meets the script's own way.
            self._stop_signals.close()
        return self._end(outcome) if isinstance(outcome, Verdict) else outcome

    @contextlib.contextmanager
    def leaving(self) -> Iterator[None]:
        """What leaves the block other than by its end leaves the cluster in order."""
        try:
            yield
        except Exception:
            raise
        except (StopSignalReceived, KeyboardInterrupt) as error:
            if self.is_child():
                raise
            self._stop(signal_number(error))
        except BaseException as error:
            if self.is_child():
                raise
            self._left(early_exit.seen(error))
            raise
        finally:
            last_uploads.await_at_exit(self._service, lambda: self._stop_signals.has_held_back)
            self._stop_signals.close()

    def begin(self) -> None:
        """Join the cluster, and pay while it forms what every entry needs."""
        self._service.on_admitted = framework_hooks.run_joined
        self._service.training_control.leave_as_asked = self._stop_signals.let_through
        # A launcher that sees this process dial may ask it to stop: by then both signals are understood.
        self._stop_signals.open()
        self._service.start()
        if self._asked_early:
            self._ask_to_depart()
        if self._settings.role is config.SettingsRole.SERVER:
            return
        framework_hooks.warm_up(self._warm_ups, self._service.training_control.is_planned)

    def _ask_to_depart(self) -> None:
        """SIGTERM: training goes on until it is known whether the rank can be handed over."""
        if self._service.training_control.job_is_over:
            # There is no rank to hand over any more.
            raise StopSignalReceived(signal.SIGTERM)
        if not self._service.is_up:
            self._asked_early = True
            return
        self._service.post(s.DepartAsked(self._service.new_request(), signal.SIGTERM.name))

    def _stop(self, number: int) -> NoReturn:
        """Leave the cluster in order, then end as a process that a signal has ended.

        The shutdown is bounded in time, so a second signal has no effect: it would only break the shutdown off.
        """
        for again in (signal.SIGTERM, signal.SIGINT):
            signal.signal(again, signal.SIG_IGN)
        name = signal.Signals(number).name
        if self._service.is_up:
            self._service.post(s.StopAsked(self._service.new_request(), name))
            self._service.training_control.verdict()
        if self._service.training_control.job_is_over and (
            code := last_uploads.stopped_before_the_wait(self._service, StopSignalReceived(number))
        ):
            # Its line is the last one of this process.
            process_end.leave(code, "")
        process_end.leave(128 + number, f"STOPPED: stopped by {name}")

    def is_child(self) -> bool:
        """Is this a fork of the training process? It has the frames of its parent, and no part in the cluster."""
        return os.getpid() != self._pid

    def _left(self, left: EarlyExit) -> None:
        """The script ends this process, and this rank is not done."""
        session, service = self.session, self._service
        if (verdict := service.training_control.verdict_if_any()) is not None and verdict.code:
            self._end(verdict)
        generation, step = (session.plan_generation, session.step) if session else (Generation(0), 0)
        if session is not None:
            session.close()
        service.post(s.TrainingRaised(service.new_request(), generation, step, left.error, left.traceback))
        service.training_control.verdict()
        if left.succeeds:
            process_end.leave(ROWS["EXIT_BEFORE_END"].exit_code, early_exit.line_of(left, step))

    def _train(self, function: Callable[..., Any]) -> Any:
        """What the training function returned once all ranks were done, or why this process must end before that."""
        if self._settings.role is config.SettingsRole.SERVER:
            return self._service.training_control.verdict()
        gc.collect()
        # What is imported stays: collections between generations look only at what training built.
        gc.freeze()
        self.note_entry_states()
        while True:
            session = self.next_session(is_first=self.session is None)
            if isinstance(session, Verdict):
                return session
            try:
                result = current.call(function, session)
            except BaseException as error:
                if not self.left(session, error):
                    raise
            else:
                if not self.left(session, None):
                    return result

    def note_entry_states(self) -> None:
        """As the generators and global settings stand now, so they stand at every entry."""
        self._entry_states = [(restore, capture()) for capture, restore in framework_hooks.entry_states]

    def next_session(self, *, is_first: bool) -> Session | Verdict:
        """Wait for the next generation, or for the end of the process.

        Args:
            is_first: what enters it has seen no place of its rank on the host yet.
        """
        plan = self._service.training_control.next_plan(self._generation)
        if isinstance(plan, Verdict):
            return plan
        self._generation = plan.generation
        admitted = self._service.machine.admitted
        assert admitted is not None, "a plan is for members"
        bootstrap.announce_rank(self._settings, plan, is_first=is_first)
        for restore, state in self._entry_states:
            restore(state)
        self.session = Session(self._service, plan, admitted, self._live)
        current.enter(self.session)
        return self.session

    def left(self, session: Session, error: BaseException | None) -> bool:
        """What trains was left. Gives whether its generation has ended before it was done, and it is to be entered again.

        Args:
            session: of this entry.
            error: what it has raised; None: it has come to its end.

        Raises:
            Exception: a mistake of the script's that came only here: `error` itself is the caller's.
        """
        if error is not None and (not isinstance(error, Exception) or self.is_child()):
            return False
        try:
            if error is None:
                self._finish(session)
        except Exception as failure:
            if not self._is_over(session, failure):
                raise
            return True
        if error is not None:
            return self._is_over(session, error)
        current.enter(None)
        session.close()
        return False

    def _finish(self, session: Session) -> None:
        """This rank has done all: wait for the others.

        Raises:
            GenerationInterrupted: another rank fell before it was done.
            RecoveryError: what was trained last is not saved.
        """
        if session.loop_watch.in_loop:
            process_end.log_loop_left_early(session.step)
        session.settle()
        self._service.post(s.TrainingDone(self._service.new_request(), session.plan_generation, session.step))
        self._service.training_control.await_end(session.generation)

    def _is_over(self, session: Session, error: Exception) -> bool:
        """Was it the end of the generation that raised this? Then all of that generation goes. Else it is the user's own mistake, and reported."""
        service, collective_error = self._service, ""
        if not isinstance(error, GenerationInterrupted):
            if not service.training_control.is_interrupted(session.generation):
                if not framework_hooks.is_collective_error(error):
                    session.close()
                    self._raised(session, error)
                    return False
                collective_error = f"{type(error).__name__}: {_first_sentence(error)}"
            # Frames hold tensors, loaders and the old world.
            traceback.clear_frames(error.__traceback__)
        self.close_generation(session, collective_error)
        return True

    def close_generation(self, session: Session, collective_error: str = "") -> None:
        """The generation of this entry is over.

        Args:
            session: of this entry.
            collective_error: by which it was noticed here; empty: it was reported.
        """
        current.enter(None)
        session.state = None
        live, not_live = self._live.left()
        # What the function built goes before the world it was built in.
        gc.collect()
        session.close()
        self._service.post(
            s.TrainingStopped(session.plan_generation, session.step, collective_error, live, not_live)
        )

    def replace(self, reason: str) -> NoReturn:
        """Start the process's command line again, as the same incarnation: what trains cannot be entered again in this process.

        Args:
            reason: for people.
        """
        service = self._service
        if (verdict := service.training_control.verdict_if_any()) is not None:
            self._end(verdict)
            process_end.leave(0, "")
        session = self.session
        assert session is not None, "it has trained"
        service.replace_process(reason)
        raise AssertionError("the process has another program now")

    def _raised(self, session: Session, error: Exception) -> None:
        """The user's own code raised: it is reported to the scheduler, with its traceback, before this process ends."""
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        name = f"{type(error).__name__}: {error}"
        self._service.post(
            s.TrainingRaised(self._service.new_request(), session.plan_generation, session.step, name, text)
        )
        self._service.training_control.verdict()

    def _end(self, verdict: Verdict) -> None:
        if verdict.code:
            process_end.leave(process_end.code_of(verdict), f"{verdict.code}: {verdict.reason}")
        if self.session is None and (self._settings.standby or self._settings.replaces):
            # It was never needed: what the script does with its trained model is for those that trained.
            process_end.leave(0, "")


def _first_sentence(error: Exception) -> str:
    """Torch adds advice and greetings to what happened; the event log needs what happened."""
    return (str(error).splitlines() or [""])[0].partition(". ")[0][-300:]
