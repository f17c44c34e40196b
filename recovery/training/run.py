"""`recovery.run`: one training function, entered again for every generation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from recovery import config
from recovery.errors import UsageError
from recovery.training import bootstrap, current, process_end
from recovery.training.run_loop import RunLoop
from recovery.training.session import Session

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


@overload
def run(function: Callable[Concatenate[Session, _Parameters], _Result]) -> Callable[_Parameters, _Result]: ...


@overload
def run(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]: ...


@overload
def run(
    *, warm_up: Callable[[], object] | None = None
) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]: ...


def run(function: Any = None, *, warm_up: Callable[[], object] | None = None) -> Any:
    """Make a training function recoverable.

    Called in a process with MS_ROLE=MS_SCHED it serves as the scheduler until the job ends and then exits. Called in a worker it
    enters the function once per generation: at the start, and again after every rollback, with the same arguments. It returns what the function
    returns once all ranks are done.

    Args:
        function: builds everything it needs again at every entry. It gets the `Session` at the parameter that is annotated as one or called
            `session`, or at the first one that the call leaves open; if it has none, `current_session` gives it.
        warm_up: called once, while this process waits to be admitted: load here what every entry needs (the data set).

    Returns:
        The recoverable function, which takes what the function takes besides the session; without `function`, a decorator that makes one.

    Raises:
        SystemExit: the process must end: wrong settings, refused, fenced, the job failed. One clear line says why; each reason
            has its own exit code (docs/reference/settings.md, docs/reference/errors.md).
    """
    if function is None:
        return functools.partial(run, warm_up=warm_up)

    @functools.wraps(function)
    def recoverable(*arguments: Any, **named: Any) -> Any:
        with process_end.one_clear_line():
            _check_is_first(function)
            settings = bootstrap.begin()
            result = RunLoop(settings, warm_up).run(
                lambda session: current.call(function, session, *arguments, **named)
            )
            _trained[_job_of(settings)] = function.__name__
            return result

    # With the wrapped signature pytest would look for a fixture "session".
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
