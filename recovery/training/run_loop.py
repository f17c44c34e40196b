"""The run loop: what trains, a function or a script, entered again for every generation."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from recovery import config
from recovery.core.ids import Generation
from recovery.core.worker import stimuli as s
from recovery.errors import ROWS, GenerationInterrupted
from recovery.training import bootstrap, current, early_exit, framework_hooks, last_uploads, process_end
from recovery.training.early_exit import EarlyExit
from recovery.training.live_rollback import LiveRollback
from recovery.training.session import Session
from recovery.training.stop_signals import (
    ScriptStopSignals,
    StopSignalReceived,
    StopSignals,
    signal_number,
)
from recovery.worker.service import WorkerService
from recovery.worker.training_control import Verdict

_OF_TRAINING = (Exception, GenerationInterrupted)
"""What else is raised ends the process."""


class RunLoop:
    """A worker's main thread: what it trains is entered again for every generation, be it a function or a script."""

    def __init__(
        self,
        settings: config.Settings,
        warm_up: Callable[[], object] | None = None,
        *,
        starts_again: bool = False,
        may_start_again: bool = False,
        keeps: bool = True,
    ) -> None:
        """Prepare; `begin` joins the cluster.

        Args:
            settings: of a worker or a server.
            warm_up: as for `run`.
            starts_again: what trains cannot be entered again in this process: it starts its program again instead, by exec.
            may_start_again: the same is done where something in it cannot be entered again.
            keeps: as of `LiveRollback`.
        """
        self._settings = settings
        self.service = WorkerService(settings, starts_again=starts_again or may_start_again)
        self._pid = os.getpid()
        self._asked_early = False
        """SIGTERM came before there was anybody to tell of it."""
        self._live = LiveRollback(
            self.service,
            why_not="a script starts its program again" if starts_again else "",
            keeps=keeps,
            of_frameworks=framework_hooks.kept_objects,
        )
        self.session: Session | None = None
        """Of this entry, or of the last one."""
        self._generation = 0
        self._warm_ups = [self.service.local_store.warm_up, *([warm_up] if warm_up else [])]
        self._entry_states: list[tuple[Callable[[Any], None], Any]] = []
        control = self.service.training_control
        self.stop_signals = (
            ScriptStopSignals(self._ask_to_depart, lambda: control.job_is_over)
            if starts_again
            else StopSignals(self._ask_to_depart)
        )
        control.leave_as_asked = self.stop_signals.let_through
        self.leave: Callable[[int, str], NoReturn] = process_end.leave
        """Ends the process with an exit code and its line."""

    def run(self, enter: Callable[[Session], Any]) -> Any:
        """Train by what enters a function. Returns what that returned once all ranks were done; None where this process was not needed."""
        # A launcher that sees this process dial may ask it to stop: by then both signals are understood.
        self.stop_signals.open()
        try:
            with self.leaving():
                self.begin()
                outcome = self._train(enter)
                # In here, so that a signal which comes before is caught here; one that comes later meets the script's own way.
                self.stop_signals.close()
        finally:
            self.close()
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
            # Its line is the last one of this process.
            self.leave(self.stop(signal_number(error)), "")
        except BaseException as error:
            if self.is_child():
                raise
            self.left_early(early_exit.seen(error))
            raise

    def close(self) -> None:
        """It trains no more: signals are the script's own again, and where the job has finished the process's end waits for the last upload."""
        last_uploads.await_at_exit(self.service, lambda: self.stop_signals.has_held_back)
        self.stop_signals.close()

    def begin(self) -> None:
        """Join the cluster, and pay while it forms what every entry needs."""
        self.service.on_admitted = framework_hooks.run_joined
        self.service.start()
        if self._asked_early:
            self._ask_to_depart()
        if self._settings.role is config.SettingsRole.SERVER:
            return
        framework_hooks.warm_up(self._warm_ups, self.service.training_control.is_planned)

    def _ask_to_depart(self) -> None:
        """SIGTERM: training goes on until it is known whether the rank can be handed over."""
        if self.service.training_control.job_is_over:
            # There is no rank to hand over any more.
            raise StopSignalReceived(signal.SIGTERM)
        if not self.service.is_up:
            self._asked_early = True
            return
        self.service.post(s.DepartAsked(self.service.new_request(), signal.SIGTERM.name))

    def stop(self, number: int) -> int:
        """Leave the cluster in order, then end as a process that a signal has ended.

        The shutdown is bounded in time, so a second signal has no effect: it would only break the shutdown off.

        Args:
            number: the signal.

        Returns:
            The exit code of a process whose last upload is not finished: it says so by itself.
        """
        for again in (signal.SIGTERM, signal.SIGINT):
            signal.signal(again, signal.SIG_IGN)
        name = signal.Signals(number).name
        if self.service.is_up:
            self.service.post(s.StopAsked(self.service.new_request(), name))
            self.service.training_control.verdict()
        code = 0
        if self.service.training_control.job_is_over:
            code = last_uploads.stopped_before_the_wait(self.service, StopSignalReceived(number))
        if not code:
            self.leave(128 + number, f"STOPPED: stopped by {name}")
        return code

    def is_child(self) -> bool:
        """Is this a fork of the training process? It has the frames of its parent, and no part in the cluster."""
        return os.getpid() != self._pid

    def left_early(self, left: EarlyExit) -> None:
        """The script ends this process, and this rank is not done."""
        session, service = self.session, self.service
        if (verdict := service.training_control.verdict_if_any()) is not None and verdict.code:
            self._end(verdict)
        generation, step = (session.plan_generation, session.step) if session else (Generation(0), 0)
        if session is not None:
            session.close()
        service.post(s.TrainingRaised(service.new_request(), generation, step, left.error, left.traceback))
        service.training_control.verdict()
        if left.succeeds:
            self.leave(ROWS["EXIT_BEFORE_END"].exit_code, early_exit.line_of(left, step))

    def _train(self, enter: Callable[[Session], Any]) -> Any:
        """What the training function returned once all ranks were done, or why this process must end before that."""
        if self._settings.role is config.SettingsRole.SERVER:
            return self.service.training_control.verdict()
        gc.collect()
        # What is imported stays: collections between generations look only at what training built.
        gc.freeze()
        self.note_entry_states()
        while True:
            session = self.next_session(is_first=self.session is None)
            if isinstance(session, Verdict):
                return session
            try:
                framework_hooks.enter(session)
                result = enter(session)
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
        plan = self.service.training_control.next_plan(self._generation)
        if isinstance(plan, Verdict):
            return plan
        self._generation = plan.generation
        admitted = self.service.machine.admitted
        assert admitted is not None, "a plan is for members"
        bootstrap.announce_rank(self._settings, plan, is_first=is_first)
        for restore, state in self._entry_states:
            restore(state)
        self.session = Session(self.service, plan, admitted, self._live)
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
        if error is not None and (not isinstance(error, _OF_TRAINING) or self.is_child()):
            return False
        try:
            if error is None:
                self.finish(session)
        except _OF_TRAINING as failure:
            if not self._is_over(session, failure):
                raise
            return True
        if error is not None:
            return self._is_over(session, error)
        current.enter(None)
        session.close()
        return False

    def finish(self, session: Session) -> None:
        """This rank has done all: wait for the others.

        Raises:
            GenerationInterrupted: another rank fell before it was done.
            RecoveryError: what was trained last is not saved.
        """
        if session.loop_watch.in_loop:
            process_end.log_loop_left_early(session.step)
        session.settle()
        self.service.post(s.TrainingDone(self.service.new_request(), session.plan_generation, session.step))
        self.service.training_control.await_end(session.generation)

    def _is_over(self, session: Session, error: Exception | GenerationInterrupted) -> bool:
        """Was it the end of the generation that raised this? Then all of that generation goes. Else it is the user's own mistake, and reported."""
        service, collective_error = self.service, ""
        if not isinstance(error, GenerationInterrupted):
            if not service.training_control.is_interrupted(session.generation):
                if not framework_hooks.is_collective_error(error):
                    session.close()
                    self.report(session, error)
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
        session.phases.forget()
        live, not_live = self._live.left()
        # What the function built goes before the world it was built in.
        gc.collect()
        session.close()
        self.service.post(
            s.TrainingStopped(session.plan_generation, session.step, collective_error, live, not_live)
        )

    def replace(self, reason: str, broke: str = "") -> NoReturn:
        """Start the process's command line again, as the same incarnation: what trains cannot be entered again in this process.

        Args:
            reason: for people.
            broke: by which mistake of the data plane the generation is over, where that was not reported yet.
        """
        service, session = self.service, self.session
        assert session is not None, "it has trained"
        if (verdict := service.training_control.verdict_if_any()) is not None:
            self._end(verdict)
            self.leave(0, "")
        if broke:
            service.post(s.DataPlaneBroke(session.plan_generation, session.step, broke))
        service.training_control.await_interrupt(session.generation)
        service.replace_process(reason)
        msg = "the process has another program now"
        raise AssertionError(msg)

    def report(self, session: Session, error: BaseException) -> None:
        """The user's own code raised: it is reported to the scheduler, with its traceback, before this process ends."""
        name, text = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
        self.service.post(
            s.TrainingRaised(self.service.new_request(), session.plan_generation, session.step, name, text)
        )
        self.service.training_control.verdict()

    def _end(self, verdict: Verdict) -> None:
        if verdict.code:
            self.leave(verdict.exit_code, f"{verdict.code}: {verdict.reason}")
        if self.session is None and (self._settings.standby or self._settings.replaces):
            # It was never needed: what the script does with its trained model is for those that trained.
            process_end.leave(0, "")


def _first_sentence(error: Exception) -> str:
    """Torch adds advice and greetings to what happened; the event log needs what happened."""
    return (str(error).splitlines() or [""])[0].partition(". ")[0][-300:]
