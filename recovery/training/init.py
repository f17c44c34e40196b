"""For scripts that are no function: `session = recovery.init()` where MindSpore's scripts call `init()`.

Where the launcher has forked the process, the engine runs the script, and runs it again in the same process when its generation ends
(`own_main`). Elsewhere a script cannot be entered again, so a survivor replaces itself by exec: same pid, rank and incarnation, the program
from its first line.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from recovery import config
from recovery.config import Settings
from recovery.core.worker import stimuli as s
from recovery.errors import ROWS, GenerationInterrupted, RecoveryError, UsageError
from recovery.training import (
    bootstrap,
    current,
    early_exit,
    framework_hooks,
    last_uploads,
    process_end,
    secure_channel,
)
from recovery.training.early_exit import EarlyExit
from recovery.training.own_main import own_main
from recovery.training.run import RunLoop
from recovery.training.session import Session
from recovery.training.stop_signals import ScriptStopSignals, StopSignalReceived
from recovery.worker.exec_in_place import replace_process
from recovery.worker.service import WorkerService
from recovery.worker.training_control import Verdict

_script: _Script | _RunAgain | None = None


def init(
    *,
    config_file_path: str | Path | None = None,
    enable_ssl: bool | None = None,
    client_password: str | None = None,
    server_password: str | None = None,
) -> Session:
    """Join the cluster and wait for the first plan. Call it once, before the training loop.

    In a process with MS_ROLE=MS_SCHED it serves as the scheduler until the job ends and exits the process.

    Args:
        config_file_path: config.json of the secure channel; None: that of MS_CONFIG_FILE_PATH.
        enable_ssl: whether connections are TLS; None: as MS_ENABLE_SSL says.
        client_password: of the PKCS#12 file that dials; None: that of MS_CLIENT_PASSWORD_FILE.
        server_password: of the one that listens; None: that of MS_SERVER_PASSWORD_FILE.

    Returns:
        The session of this entry. When its generation ends the process starts again from the script's first line.

    Raises:
        SystemExit: as for `recovery.run`; also with the exit code of UsageError where it is called twice.
    """
    global _script  # noqa: PLW0603 - a process has one membership
    with process_end.one_clear_line():
        if _script is not None and not (isinstance(_script, _RunAgain) and not own_main.has_joined):
            mistake = UsageError(
                field="recovery.init()",
                reason="was called a second time in this process",
                next_step="Call it once and keep the session, or use @recovery.run.",
            )
            # Its end would be taken for that of its training.
            _script.report(mistake)
            raise mistake
        secure_channel.set_ps_context(
            config_file_path=config_file_path,
            enable_ssl=enable_ssl,
            client_password=client_password,
            server_password=server_password,
        )
        if _script is None:
            settings = bootstrap.begin()
            _script = (
                _RunAgain(settings)
                if own_main.may_run_again and not config.under_pytest()
                else _Script(settings)
            )
        return _script.begin()


class _RunAgain:
    """The membership of a process whose script is run again in it, by whoever runs it (`own_main`)."""

    def __init__(self, settings: Settings) -> None:
        self._loop = RunLoop(settings)
        self._session: Session | None = None

    def begin(self) -> Session:
        if own_main.member is None:
            own_main.member = self
            self._loop.begin()
        session = self._loop.next_session(is_first=True)
        if isinstance(session, Verdict):
            _leave(session)
        own_main.has_joined, self._session = True, session
        secure_channel.note_joined()
        return session

    def report(self, error: BaseException) -> None:
        """Nothing is reported here: what leaves the script is seen where it is run."""

    def left(self, error: BaseException | None) -> bool:
        session = self._session
        assert session is not None, "the program has joined in this run of it"
        with process_end.one_clear_line(), self._loop.leaving():
            if isinstance(error, SystemExit):
                session.loop_watch.note_exit(error)
                if session.loop_watch.left is None:
                    error = None
                elif session.interrupted:
                    self._loop.close_generation(session)
                    return True
            if self._loop.left(session, error):
                secure_channel.note_joined(False)
                return True
            if error is not None:
                raise error
        return False

    def replace(self, reason: str) -> None:
        self._loop.replace(reason)


class _Script:
    """The membership of a process whose training is its script."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._service = settings, WorkerService(settings, starts_again=True)
        self._pid = os.getpid()
        self._raised = self._exiting = False
        control = self._service.training_control
        self._signals = ScriptStopSignals(self._ask_to_depart, lambda: control.job_is_over)
        control.leave_as_asked = self._signals.let_through
        self._session: Session

    def begin(self) -> Session:
        self._service.on_admitted = framework_hooks.run_joined
        self._service.start()
        framework_hooks.warm_up((), self._service.training_control.is_planned)
        plan = self._service.training_control.next_plan(0)
        if isinstance(plan, Verdict):
            last_uploads.await_at_exit(self._service)
            _leave(plan)
        admitted = self._service.machine.admitted
        assert admitted is not None, "a plan is for members"
        bootstrap.announce_rank(self._settings, plan, is_first=True)
        self._session = Session(self._service, plan, admitted)
        self._session.loop_watch.looks_for_exits = True
        current.enter(self._session)
        if self._settings.rules.recovery_enabled:
            # Without it SIGTERM ends a script at once, wherever it is.
            self._signals.install()
        sys.exit = early_exit.exit_that_notes(self._note_exit)
        sys.excepthook = self._on_exception
        atexit.register(self._on_exit)
        return self._session

    def _ask_to_depart(self) -> None:
        self._service.post(s.DepartAsked(self._service.new_request(), signal.SIGTERM.name))

    def _note_exit(self, error: SystemExit, at: FrameType) -> None:
        watch = self._session.loop_watch
        watch.note_exit(error, at)
        if watch.is_behind:
            last_uploads.note_exit(error, at)

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """What no handler of the script caught."""
        self._on_failure(kind, error, trace, show=True)

    def _on_failure(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None, *, show: bool
    ) -> None:
        session, service = self._session, self._service
        interrupted = isinstance(error, GenerationInterrupted) or service.training_control.is_interrupted(
            session.generation
        )
        if interrupted or framework_hooks.is_collective_error(error):
            self._replace(session, "" if interrupted else f"{kind.__name__}: {error}")
        # An error of ours says in one line what is wrong, as in `recovery.run`.
        ours = error if isinstance(error, RecoveryError) else None
        if show and ours is None:
            sys.__excepthook__(kind, error, trace)
        self.report(error)
        if ours is not None:
            process_end.leave_at_exit(ours.exit_code, str(ours))

    def report(self, error: BaseException) -> None:
        """This process ends by its own mistake, also if the generation ends meanwhile."""
        self._raised = True
        session, service = self._session, self._service
        service.training_control.forget_wakers()
        name, text = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
        service.post(
            s.TrainingRaised(service.new_request(), session.plan_generation, session.step, name, text)
        )
        service.training_control.verdict()

    def _on_exit(self) -> None:
        """The script has ended: wait until every rank has, as in @recovery.run.

        A mistake that was reported needs nothing more, and a fork of this process has no part in the cluster.
        """
        if self._raised or os.getpid() != self._pid:
            return
        self._exiting = True
        error = getattr(sys, "last_value", None)
        # Not seen by `_on_exception` where a framework has put a hook of its own in place of ours, or pytest has caught it.
        if error is not None:
            self._on_failure(type(error), error, error.__traceback__, show=False)
            return
        session = self._session
        if session.loop_watch.left is not None:
            self._left(session.loop_watch.left)
            return
        try:
            self._finish(session)
        except KeyboardInterrupt:
            self._stop(signal.SIGINT)

    def _finish(self, session: Session) -> None:
        """This rank has done all: wait for the others, and for the last upload."""
        service = self._service
        if session.loop_watch.in_loop:
            process_end.log_loop_left_early(session.step)
        try:
            session.settle()
        except RecoveryError as failure:
            self._on_failure(type(failure), failure, failure.__traceback__, show=False)
            return
        service.post(s.TrainingDone(service.new_request(), session.plan_generation, session.step))
        try:
            service.training_control.await_end(session.generation)
        except GenerationInterrupted:
            self._replace(session, "")
        session.close()
        last_uploads.await_sent(service, lambda: self._signals.has_held_back)

    def _stop(self, number: signal.Signals) -> None:
        """Leave in order, as `recovery.run` does. Python would print what was raised in a handler of atexit, and end with 0."""
        for again in (signal.SIGTERM, signal.SIGINT):
            signal.signal(again, signal.SIG_IGN)
        service = self._service
        if service.is_up:
            service.post(s.StopAsked(service.new_request(), number.name))
            service.training_control.verdict()
        if service.training_control.job_is_over and last_uploads.stopped_before_the_wait(
            service, StopSignalReceived(number)
        ):
            return
        process_end.leave_at_exit(128 + number, f"STOPPED: stopped by {number.name}")

    def _left(self, left: EarlyExit) -> None:
        """The script ended this process in the middle of its loop: this rank is not done."""
        session, service = self._session, self._service
        if service.training_control.is_interrupted(session.generation):
            self._replace(session, "")
        service.training_control.forget_wakers()
        service.post(
            s.TrainingRaised(
                service.new_request(), session.plan_generation, session.step, left.error, left.traceback
            )
        )
        service.training_control.verdict()
        if left.succeeds:
            process_end.leave_at_exit(
                ROWS["EXIT_BEFORE_END"].exit_code, early_exit.line_of(left, session.step)
            )

    def _replace(self, session: Session, collective_error: str) -> None:
        service = self._service
        verdict = service.training_control.verdict_if_any()
        if verdict is not None:
            _leave(verdict, exiting=self._exiting)
        if collective_error:
            service.post(s.DataPlaneBroke(session.plan_generation, session.step, collective_error))
            service.training_control.await_interrupt(session.generation)
        admitted = service.machine.admitted
        assert admitted is not None, "it trained"
        replace_process(admitted.token, service.machine.hangs)


def _leave(verdict: Verdict, *, exiting: bool = False) -> NoReturn:
    """End with the scheduler's verdict: a server, or a process that comes after the end, has nothing to do in a finished job."""
    code = process_end.code_of(verdict)
    line = f"{verdict.code}: {verdict.reason}" if verdict.code else ""
    if exiting:
        process_end.leave_at_exit(code, line)
    process_end.leave(code, line)
