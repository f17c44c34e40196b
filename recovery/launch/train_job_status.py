"""What a TrainJob of Kubeflow is told of a job: `trainerStatus`, made of what the scheduler shows. Pure: the clocks are arguments.

The form is that of kubeflow/trainer, pkg/apis/trainer/v1alpha1/trainjob_types.go (`TrainerStatus`, `Metric`): progressPercentage 0 to 100 and
estimatedRemainingSeconds from 0 on, int32, left out where unknown; up to 256 metrics, name and value texts of 1 to 64 characters;
lastUpdatedTime (RFC 3339) must be there.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import Any

from recovery import job_line
from recovery.core.records import JobState

_SECONDS_MAX = 2**31 - 1
_METRIC_MAX = 64


class Goodput:
    """Which share of the time was spent on steps that had not been done before, as far as it was seen from outside.

    `recovery timeline` knows it to the millisecond, from records that lie on other hosts; here a failure costs up to one look more.
    """

    def __init__(self) -> None:
        """Nothing seen yet."""
        self._begun_ms = self._useful_ms = self._generation = self._reached = 0
        self._since_ms: int | None = None
        """Since when the job trains on new ground; None: it does not."""

    def note(self, step: int, generation: int, now_ms: int, *, trains: bool) -> float | None:
        """Take what is seen now; gives the share, 0 to 1. None: no step was seen to be made yet."""
        self._begun_ms = self._begun_ms or now_ms
        if not trains:
            self._since_ms = None
        elif self._since_ms is None or generation != self._generation:
            self._since_ms = now_ms
        if trains and self._since_ms is not None:
            if step > self._reached:
                self._useful_ms += now_ms - self._since_ms
            if step != self._reached:
                self._since_ms = now_ms
        self._generation, self._reached = generation, max(step, self._reached)
        return self._useful_ms / max(1, now_ms - self._begun_ms) if self._useful_ms else None


class TrainJobStatus:
    """Of one job, while it runs and at its end."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._pace, self._goodput = job_line.Pace(), Goodput()
        self._status: dict[str, Any] = {}
        self.is_finished = False
        """Has the scheduler shown a finished job?"""

    def note(self, view: Mapping[str, Any], now_ms: int) -> None:
        """Take what the scheduler shows.

        Args:
            view: of the job, as of `recovery.core.scheduler.views.job_view`.
            now_ms: on the monotonic clock.
        """
        training, generation = job_line.training_of(view), view["generation"]
        step, total = training.step, training.total_steps
        trains = view["state"] == JobState.RUNNING.value and not job_line.is_waiting(view)
        if not trains:
            self._pace.forget()
        per_s = self._pace.note(step, now_ms) if trains else 0.0
        share = self._goodput.note(step, generation, now_ms, trains=trains)
        self.is_finished = view["state"] == JobState.FINISHED.value
        self._status = {}
        if total:
            # 100 is said of a job that has finished.
            self._status["progressPercentage"] = min(99, step * 100 // total)
        if per_s and total:
            left_s = math.ceil(max(0, total - step) / per_s)
            self._status["estimatedRemainingSeconds"] = min(_SECONDS_MAX, left_s)
        known = {
            "loss": training.loss if training.loss is None else f"{training.loss}",
            "goodput": share if share is None else f"{share:.4f}",
            "generation": f"{generation}",
            "step": f"{step}",
        }
        self._status["metrics"] = [
            {"name": name, "value": value[:_METRIC_MAX]} for name, value in known.items() if value
        ]

    def body(
        self, at: datetime.datetime, *, is_over: bool = False, has_finished: bool = False
    ) -> dict[str, Any]:
        """What is posted.

        Args:
            at: the time, with its zone.
            is_over: no step is made here any more.
            has_finished: and the job is done.
        """
        status = dict(self._status)
        if is_over or self.is_finished:
            status.pop("estimatedRemainingSeconds", None)
        if has_finished or self.is_finished:
            status |= {"progressPercentage": 100, "estimatedRemainingSeconds": 0}
        time = at.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"trainerStatus": {**status, "lastUpdatedTime": time}}
