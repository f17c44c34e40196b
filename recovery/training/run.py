"""The run loop: one training function, entered again for every generation."""

from __future__ import annotations

import functools
import gc
import os
import signal
import traceback
from collections.abc import Callable
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
            result = _Loop(settings, function, warm_up).run()
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


class _Loop:
    """A worker's main thread."""

    def __init__(
        self,
        settings: config.Settings,
        function: Callable[[Session], Any],
        warm_up: Callable[[], object] | None,
    ) -> None:
        self._settings, self._function = settings, function
        self._service = WorkerService(settings)
        self._pid = os.getpid()
        self._asked_early = False
        """SIGTERM came before there was anybody to tell of it."""
        self._live = LiveRollback(self._service)
        self._session: Session | None = None
        self._warm_ups = [self._service.local_store.warm_up, *([warm_up] if warm_up else [])]

    def run(self) -> Any:
        self._service.on_admitted = framework_hooks.run_joined
        stop_signals = StopSignals(self._ask_to_depart)
        self._service.training_control.leave_as_asked = stop_signals.let_through
        with stop_signals:
            try:
                # A launcher that sees this process dial may ask it to stop: by then both signals are understood.
                self._start()
                outcome = self._train()
                # In here, so that a signal which comes before is caught here; one that comes later meets the script's own way.
                stop_signals.close()
            except Exception:
                raise
            except (StopSignalReceived, KeyboardInterrupt) as error:
                if self._is_child():
                    raise
                self._stop(signal_number(error))
            except BaseException as error:
                if self._is_child():
                    raise
                self._left(early_exit.seen(error))
                raise
            finally:
                last_uploads.await_at_exit(self._service, lambda: stop_signals.has_held_back)
        return self._end(outcome) if isinstance(outcome, Verdict) else outcome

    def _start(self) -> None:
        self._service.start()
        if self._asked_early:
            self._ask_to_depart()

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

    def _is_child(self) -> bool:
        """Is this a fork of the training process? It has the frames of its parent, and no part in the cluster."""
        return os.getpid() != self._pid

    def _left(self, left: EarlyExit) -> None:
        """The script ends this process, and this rank is not done."""
        session, service = self._session, self._service
        if (verdict := service.training_control.verdict_if_any()) is not None and verdict.code:
            self._end(verdict)
        generation, step = (session.plan_generation, session.step) if session else (Generation(0), 0)
        if session is not None:
            session.close()
        service.post(s.TrainingRaised(service.new_request(), generation, step, left.error, left.traceback))
        service.training_control.verdict()
        if left.succeeds:
            process_end.leave(ROWS["EXIT_BEFORE_END"].exit_code, early_exit.line_of(left, step))

    def _train(self) -> Any:
        """What the training function returned once all ranks were done, or why this process must end before that."""
        if self._settings.role is config.SettingsRole.SERVER:
            return self._service.training_control.verdict()
        framework_hooks.warm_up(self._warm_ups, self._service.training_control.is_planned)
        gc.collect()
        # What is imported stays: collections between generations look only at what training built.
        gc.freeze()
        random_states = [(restore, capture()) for capture, restore in framework_hooks.random_states]
        generation = 0
        while True:
            plan = self._service.training_control.next_plan(generation)
            if isinstance(plan, Verdict):
                return plan
            generation = plan.generation
            admitted = self._service.machine.admitted
            assert admitted is not None, "a plan is for members"
            bootstrap.announce_rank(self._settings, plan, is_first=self._session is None)
            for restore, random_state in random_states:
                restore(random_state)
            session = self._session = Session(self._service, plan, admitted, self._live)
            stopped, result = self._enter(session)
            if not stopped:
                return result

    def _enter(self, session: Session) -> tuple[bool, Any]:
        """One entry of the training function. Returns whether its generation ended before it was done, and its result."""
        service, generation = self._service, session.generation
        collective_error = ""
        try:
            current.enter(session)
            result = current.call(self._function, session)
            if session.loop_watch.in_loop:
                process_end.log_loop_left_early(session.step)
            session.settle()
            service.post(s.TrainingDone(service.new_request(), session.plan_generation, session.step))
            service.training_control.await_end(generation)
        except GenerationInterrupted:
            pass
        except Exception as error:
            if self._is_child():
                raise
            if not service.training_control.is_interrupted(generation):
                if not framework_hooks.is_collective_error(error):
                    session.close()
                    self._raised(session, error)
                    raise
                collective_error = f"{type(error).__name__}: {_first_sentence(error)}"
            # Frames hold tensors, loaders and the old world.
            traceback.clear_frames(error.__traceback__)
        else:
            current.enter(None)
            session.close()
            return False, result
        current.enter(None)
        session.state = None
        live, not_live = self._live.left()
        # What the function built goes before the world it was built in.
        gc.collect()
        session.close()
        service.post(
            s.TrainingStopped(session.plan_generation, session.step, collective_error, live, not_live)
        )
        return True, None

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
        if self._session is None and (self._settings.standby or self._settings.replaces):
            # It was never needed: what the script does with its trained model is for those that trained.
            process_end.leave(0, "")


def _first_sentence(error: Exception) -> str:
    """Torch adds advice and greetings to what happened; the event log needs what happened."""
    return (str(error).splitlines() or [""])[0].partition(". ")[0][-300:]
