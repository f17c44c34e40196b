"""For scripts that are no function: `session = recovery.init()` where MindSpore's scripts call `init()`.

Where the launcher has forked the process, the engine runs the script, and runs it again in the same process when its generation ends
(`own_main`). Elsewhere a script cannot be entered again, so a survivor replaces itself by exec: same pid, rank and incarnation, the program
from its first line.
"""

from __future__ import annotations

import atexit
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType

from recovery import config
from recovery.config import Settings
from recovery.errors import GenerationInterrupted, RecoveryError, UsageError
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
from recovery.training.run_loop import RunLoop
from recovery.training.session import Session
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
        The session of this entry. When its generation ends the script is run again from its first line: in the same process where the
            launcher has forked it, else the process starts again, by exec.

    Raises:
        SystemExit: as for `recovery.run`; also with the exit code of UsageError where it is called twice.
    """
    global _script  # noqa: PLW0603 - a process has one membership
    if _script is None and current.current_session() is not None:
        raise UsageError(
            field="recovery.init()",
            reason="was called inside a function of @recovery.run, which has joined the job",
            next_step="Use the session that the function is given, and form the world there with recovery.torch.init_process_group(session); or call "
            "the function without @recovery.run.",
        )
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
        self._loop, self._is_reported = RunLoop(settings, may_start_again=True, keeps=False), False
        self._session: Session | None = None

    def begin(self) -> Session:
        if own_main.member is None:
            own_main.member = self
            self._loop.stop_signals.open()
            self._loop.begin()
        self._session = _first_of(self._loop)
        own_main.has_joined = True
        secure_channel.note_joined()
        framework_hooks.enter(self._session)
        return self._session

    def report(self, error: BaseException) -> None:
        assert self._session is not None, "the program has joined in this run of it"
        self._is_reported = True
        self._loop.report(self._session, error)

    def left(self, error: BaseException | None) -> bool:
        if self._is_reported:
            return False
        again = False
        try:
            with process_end.one_clear_line():
                with self._loop.leaving():
                    again, left = self._is_over(error)
                if left is not None:
                    self._loop.left_early(left)
        finally:
            if not again:
                self._loop.close()
        secure_channel.note_joined(not again)
        return again

    def _is_over(self, error: BaseException | None) -> tuple[bool, EarlyExit | None]:
        """Is its generation over, and the script to be run again? And how it has left its loop before the end, where that is what it did."""
        session, loop = self._session, self._loop
        if error is not None and not isinstance(error, SystemExit):
            # A signal may come while the first plan is waited for.
            if session is None or not loop.left(session, error):
                raise error
            return True, None
        assert session is not None, "the program has joined in this run of it"
        if error is not None:
            session.loop_watch.note_exit(error)
            last_uploads.note_exit(error)
        left = session.loop_watch.left
        if left is None:
            # What exits behind its loop is done.
            return loop.left(session, None), None
        if not session.interrupted:
            return False, left
        loop.close_generation(session)
        return True, None

    def replace(self, reason: str) -> None:
        self._loop.replace(reason)


class _Script:
    """The membership of a process whose training is its script, which nobody can run again in it."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._loop = settings, RunLoop(settings, starts_again=True)
        self._raised = False
        self._session: Session

    def begin(self) -> Session:
        self._loop.begin()
        self._session = _first_of(self._loop)
        self._session.loop_watch.looks_for_exits = True
        if self._settings.rules.recovery_enabled:
            # Without it SIGTERM ends a script at once, wherever it is.
            self._loop.stop_signals.open()
        sys.exit = early_exit.exit_that_notes(self._note_exit)
        sys.excepthook = self._on_exception
        atexit.register(self._on_exit)
        framework_hooks.enter(self._session)
        return self._session

    def _note_exit(self, error: SystemExit, at: FrameType) -> None:
        watch = self._session.loop_watch
        watch.note_exit(error, at)
        if watch.is_behind:
            last_uploads.note_exit(error, at)

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """What no handler of the script caught."""
        self._on_failure(error, shown=lambda: sys.__excepthook__(kind, error, trace))

    def _on_failure(self, error: BaseException, *, shown: Callable[[], None] = lambda: None) -> None:
        interrupted = isinstance(error, GenerationInterrupted) or self._session.interrupted
        if interrupted or framework_hooks.is_collective_error(error):
            self._loop.replace(_WHY, "" if interrupted else f"{type(error).__name__}: {error}")
        # An error of ours says in one line what is wrong, as in `recovery.run`.
        ours = error if isinstance(error, RecoveryError) else None
        if ours is None:
            shown()
        self.report(error)
        if ours is not None:
            process_end.leave_at_exit(ours.exit_code, str(ours))

    def report(self, error: BaseException) -> None:
        """This process ends by its own mistake, also if the generation ends meanwhile."""
        self._raised = True
        self._loop.service.training_control.forget_wakers()
        self._loop.report(self._session, error)

    def _on_exit(self) -> None:
        """The script has ended: wait until every rank has, as in @recovery.run.

        A mistake that was reported needs nothing more, and a fork of this process has no part in the cluster.
        """
        if self._raised or self._loop.is_child():
            return
        self._loop.leave = process_end.leave_at_exit
        error, left = getattr(sys, "last_value", None), self._session.loop_watch.left
        # Not seen by `_on_exception` where a framework has put a hook of its own in place of ours, or pytest has caught it.
        if error is not None:
            self._on_failure(error)
        elif left is not None and self._session.interrupted:
            self._loop.replace(_WHY)
        elif left is not None:
            self._loop.left_early(left)
        else:
            self._finish()

    def _finish(self) -> None:
        """This rank has done all: wait for the others, and for the last upload."""
        loop = self._loop
        try:
            loop.finish(self._session)
        except (RecoveryError, GenerationInterrupted) as failure:
            self._on_failure(failure)
        except KeyboardInterrupt:
            loop.stop(signal.SIGINT)
        else:
            self._session.close()
            last_uploads.await_sent(loop.service, lambda: loop.stop_signals.has_held_back)


_WHY = "the script's generation is over"


def _first_of(loop: RunLoop) -> Session:
    """The session of a script's start. A server, or a process that comes after the end, has nothing to do in a finished job."""
    session = loop.next_session(is_first=True)
    if isinstance(session, Verdict):
        last_uploads.await_at_exit(loop.service)
        line = f"{session.code}: {session.reason}" if session.code else ""
        process_end.leave(session.exit_code, line)
    return session
