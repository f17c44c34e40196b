"""Curves over a rollback: each step once, with the value that counts, in one run of the tracker, whichever process goes on.

A run is known by the job and its run, so that a successor on any host finds it; what was logged of steps that are made again is taken back, or
not logged twice. How, is the tracker's: a row of `KINDS`.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from typing_extensions import override

from recovery import clock
from recovery.errors import SettingError, UsageError
from recovery.training.every_steps import whole_steps
from recovery.training.session import Callback, Session

_logger = logging.getLogger("recovery.training")

GENERATION = "generation"
"""Logged with the first values of each generation: a curve of where the job was rolled back to."""
_OWED_MAX = 10_000
"""Rows that wait for a tracker which fails."""
_FAILED = "event=not_tracked kind=%s waiting=%d lost=%d error=%s"
_AGAIN_MS = 30_000
"""A tracker that fails may take a minute to say so: it is asked again after so long, and when the generation ends."""


class Row(NamedTuple):
    """What is logged of one step."""

    step: int
    values: dict[str, float]
    wall_ms: int


class TrackedRun(NamedTuple):
    """The run that goes on, as a tracker names it."""

    key: str
    """The same in every process of the job's run, and in no other."""
    job: str
    run: int
    generation: int
    step: int
    """Training goes on behind it: whatever was logged of later steps is rolled back."""


class Logged(Protocol):
    """One tracker's run, from the beginning of a generation to its end. Whatever it raises, training goes on, and it is asked again with what follows."""

    def log(self, rows: list[Row]) -> None:
        """Log rows, oldest first; when it returns they are where a killed process does not take them along."""
        ...

    def close(self, *, finished: bool) -> None:
        """The generation is over.

        Args:
            finished: training is, too.
        """
        ...


class Kind(NamedTuple):
    """A tracker."""

    module: str
    """Has `begin(run, **options)`, which gives a `Logged`."""
    extra: str
    """Of this distribution, with what the module imports."""


KINDS = {
    "tensorboard": Kind("recovery.training.tracker_tensorboard", "tensorboard"),
    "mlflow": Kind("recovery.training.tracker_mlflow", "mlflow"),
    "wandb": Kind("recovery.training.tracker_wandb", "wandb"),
}


class Tracker(Callback):
    """Logs `session.report(loss=...)` and what `log` is given, from one rank. Name it before ModelCheckpoint: a step that is saved was logged."""

    changes_state = False

    def __init__(self, kind: str, *, every_steps: int = 1, rank: int = 0, **options: Any) -> None:
        """Choose the tracker.

        Args:
            kind: tensorboard, mlflow or wandb.
            every_steps: steps between two rows.
            rank: which one logs; the others do nothing.
            **options: of the tracker: docs/howto/trackers.md.

        Raises:
            SettingError: there is no such tracker, or `every_steps` is no whole number from 1 on.
            UsageError: its package is not installed.
        """
        if kind not in KINDS:
            raise SettingError(
                "SETTING_RANGE",
                field="recovery.Tracker",
                value=kind,
                rule=f"must be {', '.join(KINDS)}",
                next_step="Give, for example, Tracker('tensorboard', directory='runs').",
            )
        next_step = "Say at each how many steps a row is to be logged."
        self._every_steps = whole_steps(every_steps, "recovery.Tracker(every_steps=...)", next_step)
        try:
            self._begin = importlib.import_module(KINDS[kind].module).begin
        except ImportError as error:
            raise UsageError(
                field=f"recovery.Tracker({kind!r})",
                reason=f"needs a package that is not installed ({error.name})",
                next_step=f"pip install 'recovery-engine[{KINDS[kind].extra}]'.",
            ) from error
        self._kind, self._options, self._rank = kind, options, rank
        self._values: dict[str, float] = {}
        """Of the step that is being made."""
        self._owed: list[Row] = []
        self._failed_ms: int | None = None
        """When it failed last; None: it has not, or works again."""
        self._logged: Logged | None = None
        self._run: TrackedRun | None = None
        self._is_finished = False

    def log(self, values: Mapping[str, float] | None = None, **named: float) -> None:
        """Add values to the row of the step that is being made.

        Args:
            values: numbers or one-element tensors by name.
            **named: the same.
        """
        self._values |= {**(values or {}), **named}

    @override
    def on_begin(self, session: Session) -> None:
        """Go on with the run of this job, behind the step that training goes back to."""
        if session.rank != self._rank:
            return
        key = f"{session.job[:12]}-{session.run}"
        self._run = TrackedRun(key, session.job, session.run, session.generation, session.step)
        self._values = {}
        # Those of steps that are made again are logged again.
        self._owed = [row for row in self._owed if row.step <= session.step]
        self._is_finished = False
        session.on_generation_end(self._close)

    @override
    def on_step_end(self, session: Session) -> None:
        """Log when it is time."""
        values, self._values = self._values, {}
        if self._run is None or session.step % self._every_steps:
            return
        loss = session.read_loss()
        if loss is not None:
            values = {"loss": loss, **values}
        if not values:
            return
        row = Row(session.step, {name: float(value) for name, value in values.items()}, clock.wall_ms())
        self._owed.append(row)
        if self._failed_ms is None or clock.monotonic_ms() - self._failed_ms >= _AGAIN_MS:
            self._send()

    @override
    def on_end(self, session: Session) -> None:
        """Training is over."""
        self._is_finished = True

    def _send(self) -> None:
        """Log what is owed. A tracker that fails costs training nothing but the time of its answer."""
        assert self._run is not None, "on_begin has been called"
        try:
            if self._logged is None:
                self._logged = self._begin(self._run, **self._options)
                for row in self._owed[:1]:
                    row.values[GENERATION] = float(self._run.generation)
            self._logged.log(self._owed)
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises, training goes on
            lost = max(0, len(self._owed) - _OWED_MAX)
            self._owed = self._owed[lost:]
            self._failed_ms = clock.monotonic_ms()
            said = f"{type(error).__name__}: {error}"
            _logger.warning(_FAILED, self._kind, len(self._owed), lost, said)
        else:
            self._owed, self._failed_ms = [], None

    def _close(self) -> None:
        """The generation is over."""
        # Who has nothing left to train finds what was logged before, and ends it.
        if self._owed or (self._is_finished and self._logged is None):
            self._send()
        logged, self._logged, self._run = self._logged, None, None
        if logged is not None:
            logged.close(finished=self._is_finished)
