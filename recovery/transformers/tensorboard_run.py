"""What `report_to="tensorboard"` writes, over rollbacks: one run of the job, whose files purge the steps that are made again as they begin."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from transformers.integrations import TensorBoardCallback

from recovery.training.session import Session

_EVENTS = "events.out.tfevents.*"


def go_on(callbacks: list[Any], session: Session, output_dir: str, purge_step: int) -> None:
    """Have the Trainer's callback write where the one of the generation before did. A writer or a directory that the script gave stays.

    Args:
        callbacks: of the Trainer.
        session: of this entry.
        output_dir: of its arguments.
        purge_step: from it on, all that generations before have logged counts no more. A directory that the script gave may hold other runs,
            which are not hidden as long as no generation of this run has written there.
    """
    owner = f".{session.job[:12]}-{session.run}"
    for callback in callbacks:
        if not isinstance(callback, TensorBoardCallback) or callback.tb_writer is not None:
            continue
        is_own = callback.logging_dir is None
        if is_own:
            # The Trainer's own name has the time of its start in it.
            callback.logging_dir = str(Path(output_dir) / "runs" / owner[1:])
        kind = callback._SummaryWriter  # noqa: SLF001 - there is no public way
        # In a folder of the run's own all is the run's, that of an earlier release, too, whose files have no such end of their names.
        ours = _EVENTS if is_own else f"{_EVENTS}{owner}"
        first = functools.partial(_first_writer, callback, kind, purge_step, owner, ours)
        callback._SummaryWriter = first  # noqa: SLF001 - as above
        # The Trainer closes it behind a training that has come to its end.
        session.on_generation_end(functools.partial(callback.on_train_end, None, None, None))


def _first_writer(callback: Any, kind: Any, purge_step: int, owner: str, ours: str, log_dir: str) -> Any:
    """Purges what this run has written, if it has. A later one, as of an evaluation behind training, purges nothing."""
    callback._SummaryWriter = kind  # noqa: SLF001 - as above
    has_written = any(Path(log_dir).glob(ours))
    return kind(log_dir=log_dir, purge_step=purge_step if has_written else None, filename_suffix=owner)
