"""MLflow: one run of an experiment, found again by its tag. MLflow takes no value back, so what a step that is made again gives is compared.

Training goes on with the same bits, so the values are the same, and are not logged twice. Where they differ the new ones are logged beside the old,
and the tag `recovery-differs-from-step` says from which step on.
"""

from __future__ import annotations

from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, RunTag

from recovery.training.tracker import GENERATION, Row, TrackedRun

_KEY = "recovery-run"
_BATCH_MAX = 1_000
"""Values that MLflow takes at once."""
_KEPT = 20_000
"""Values that are known without asking: some MB. A rollback behind the oldest of them asks MLflow, a second for each 100,000."""


class _Values:
    """What this process has logged of a run last: it need not ask for that when it goes back."""

    def __init__(self, step: int, logged: dict[tuple[str, int], str]) -> None:
        """Begin behind a step, with all that was logged of later ones."""
        self._known_behind, self._values = step, logged

    def note(self, rows: list[Row]) -> None:
        for row in rows:
            for name, value in row.values.items():
                self._values[name, row.step] = repr(value)
        while len(self._values) > _KEPT:
            oldest = next(iter(self._values))
            del self._values[oldest]
            self._known_behind = max(self._known_behind, oldest[1])

    def behind(self, step: int) -> dict[tuple[str, int], str] | None:
        """What was logged of later steps; None: not all of that is known."""
        if step < self._known_behind:
            return None
        return {key: value for key, value in self._values.items() if key[1] > step}


_newest: dict[str, _Values] = {}
"""By the id of the run: one."""


class _Run:
    """One generation of a run."""

    def __init__(self, client: Any, run_id: str, run: TrackedRun) -> None:
        self._client, self._id = client, run_id
        known = _newest[run_id].behind(run.step) if run_id in _newest else None
        self._told = _asked(client, run_id, run.step) if known is None else known
        """What an earlier generation has logged of steps that are made again."""
        self._differs = False
        if known is None:
            _newest.clear()
            _newest[run_id] = _Values(run.step, dict(self._told))
        self._values = _newest[run_id]
        client.log_batch(
            run_id,
            tags=[
                RunTag("recovery-generation", str(run.generation)),
                RunTag("recovery-began-at", str(run.step)),
            ],
        )

    def log(self, rows: list[Row]) -> None:
        new = [metric for row in rows for metric in self._new(row)]
        for begin in range(0, len(new), _BATCH_MAX):
            self._client.log_batch(self._id, metrics=new[begin : begin + _BATCH_MAX])
        self._values.note(rows)
        for row in rows:
            for name in row.values:
                self._told.pop((name, row.step), None)

    def _new(self, row: Row) -> list[Metric]:
        found = []
        for name, value in row.values.items():
            told = self._told.get((name, row.step))
            if told is not None and told != repr(value) and name != GENERATION and not self._differs:
                self._differs = True
                self._client.set_tag(self._id, "recovery-differs-from-step", str(row.step))
            if told != repr(value):
                found.append(Metric(name, value, row.wall_ms, row.step))
        return found

    def close(self, *, finished: bool) -> None:
        if finished:
            self._client.set_terminated(self._id, "FINISHED")


def _asked(client: Any, run_id: str, step: int) -> dict[tuple[str, int], str]:
    """What MLflow has of later steps. It gives a metric's whole history, whatever is asked for."""
    return {
        (key, metric.step): repr(metric.value)
        for key in client.get_run(run_id).data.metrics
        for metric in client.get_metric_history(run_id, key)
        if metric.step > step
    }


def begin(
    run: TrackedRun, *, tracking_uri: str | None = None, experiment: str = "recovery", name: str | None = None
) -> _Run:
    """Go on with the run of the job, or create it.

    Args:
        run: of the job.
        tracking_uri: as mlflow.set_tracking_uri; None: MLFLOW_TRACKING_URI, or MLflow's own default.
        experiment: name of the experiment, which is created where there is none.
        name: of the run; None: the job's.
    """
    client = MlflowClient(tracking_uri)
    found = client.get_experiment_by_name(experiment)
    experiment_id = found.experiment_id if found is not None else client.create_experiment(experiment)
    runs = client.search_runs([experiment_id], filter_string=f"tags.`{_KEY}` = '{run.key}'", max_results=1)
    if runs:
        run_id = runs[0].info.run_id
        client.update_run(run_id, status="RUNNING")
    else:
        tags = {_KEY: run.key, "recovery-job": run.job}
        run_id = client.create_run(experiment_id, tags=tags, run_name=name or run.key).info.run_id
    return _Run(client, run_id, run)
