"""The world of code that asks Accelerate for one: it is joined before the function is entered.

Accelerate and transformers look for a world in the environment and in torch, once, at the first object that is made of theirs
(`Accelerator`, `TrainingArguments`), and remember it for the process. A survivor enters its function again in another world, maybe as
another rank of a smaller number on its host: so what they remember is forgotten at every entry, and the variables say what is true there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from accelerate.state import AcceleratorState, GradientState, PartialState

import recovery.torch as rt
from recovery.torch import devices
from recovery.training import framework_hooks
from recovery.training import run as training_run
from recovery.training.rank_variables import rank_variables
from recovery.training.session import Session

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_backend: str | None = None


@overload
def run(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]: ...


@overload
def run(
    *, backend: str | None = None, warm_up: Callable[[], object] | None = None
) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]: ...


def run(
    function: Any = None, *, backend: str | None = None, warm_up: Callable[[], object] | None = None
) -> Any:
    """`recovery.run`, for which the backend can be named too.

    Args:
        function: as for `recovery.run`.
        backend: as for `recovery.torch.init_process_group`; None: gloo, and nccl too where each rank of the host has a GPU.
        warm_up: as for `recovery.run`.

    Returns:
        As `recovery.run`.

    Raises:
        SystemExit: as for `recovery.run`.
    """
    global _backend  # noqa: PLW0603 - a process has one world
    _backend = backend
    decorate = training_run.run(warm_up=warm_up)
    return decorate if function is None else decorate(function)


def _join(session: Session) -> None:
    _forget()
    session.on_generation_end(_forget)
    os.environ.update(_variables_of(session))  # noqa: TID251 - Accelerate reads them there
    rt.init_process_group(session, devices.take(session, _backend))


def _variables_of(session: Session) -> dict[str, str]:
    """What torchrun would have set. Nobody dials the address, since the world is there; Accelerate wants to see one all the same."""
    # It would look for the GPU that has the local rank's number.
    shared = {"ACCELERATE_BYPASS_DEVICE_MAP": "true"} if devices.are_shared(session) else {}
    return {
        **shared,
        **rank_variables(session),
        "MASTER_ADDR": os.environ.get("MASTER_ADDR", session.host),  # noqa: TID251 - a launcher's stays
        "MASTER_PORT": os.environ.get("MASTER_PORT", "29500"),  # noqa: TID251 - as above; Accelerate's own default
    }


def _forget() -> None:
    """Have Accelerate look for its world again."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()  # noqa: SLF001 - there is no public way


framework_hooks.on_entry(_join)
