"""`recovery.run` for a function that does not ask for a session: the Trainer that it makes finds it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from lightning.fabric.utilities import rank_zero
from torchmetrics.utilities import prints
from typing_extensions import ParamSpec

from recovery.training import run as run_loop
from recovery.training.session import Session

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def run(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Make a function recoverable in which a `Trainer` of this package fits. It is entered again, with the same arguments, after every rollback.

    Args:
        function: builds everything it needs again at every entry: data, model, trainer.

    Returns:
        The recoverable function. As `recovery.run` otherwise.
    """

    @functools.wraps(function)
    def recoverable(*arguments: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
        @functools.wraps(function)
        def entered(session: Session) -> _Result:
            # Lightning and torchmetrics have read it from the environment when they were imported; a standby had none then.
            rank_zero.rank_zero_only.rank = prints.rank_zero_only.rank = session.rank
            return function(*arguments, **named)

        # It takes the session, whatever the function takes.
        del entered.__wrapped__
        return run_loop.run(entered)()

    # As of recovery.run: pytest would look for fixtures.
    del recoverable.__wrapped__
    return recoverable
