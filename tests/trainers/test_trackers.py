"""Curves over a rollback, by the real trackers: each step once, with the value of an undisturbed training, in one run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery.training.tracker import Row, TrackedRun
from tests.cluster import tracked_job
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.test_three_lines import changed, trained
from tests.needs import needs_package

pytestmark = [pytest.mark.trainers, pytest.mark.cluster]

STEPS = tracked_job.EPOCHS * tracked_job.BATCHES
HELD = 33


def undisturbed() -> list[tuple[int, float]]:
    found, loss = [], 1.0
    for step in range(1, STEPS + 1):
        loss = tracked_job.loss_behind(step, loss)
        found.append((step, loss))
    return found


def made_in(begun: dict[int, float]) -> list[tuple[int, float]]:
    """The losses of a job whose steps tell of the generation that made them (JOB_OTHERWISE), by where each began."""
    return [(step, value + begun[max(at for at in begun if at <= step)]) for step, value in undisturbed()]


def _is_logged(store: Path, step: int) -> bool:
    """Has MLflow the loss of this step? Its rows are time, value, step; a thread of the tracker writes them."""
    return any(
        row.split()[-1:] == [str(step)]
        for path in store.glob("*/*/metrics/loss")
        for row in path.read_text().splitlines()
    )


def run_job(directory: Path, tracker: dict[str, Any], killed: str, **environment: str) -> None:
    """To its end, with ranks killed on the way where all have made the step before the held one."""
    shutil.copy(tracked_job.__file__, directory / "tracked_job.py")
    given = {"JOB_TRACKER": json.dumps(tracker), "JOB_HELD_STEP": str(HELD), **environment}
    with LaunchedCluster(directory, environment=given) as cluster:
        cluster.start(script="tracked_job.py")
        cluster.wait_step(HELD - 1)
        if tracker["kind"] == "mlflow":
            cluster.wait(lambda: _is_logged(directory / "mlruns", HELD - 1), "the last step in MLflow")
        for node_id in killed:
            os.kill(cluster.pid_of(node_id), signal.SIGKILL)
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()


def tensorboard_of(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of the one run that is there."""
    needs_package("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [run] = directory.iterdir()
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.parametrize("killed", ["0", "1"], ids=["the rank that logs", "another"])
def test_tensorboard_shows_each_step_once_with_its_value(tmp_path: Path, killed: str) -> None:
    needs_package("tensorboard")
    run_job(tmp_path, {"kind": "tensorboard", "directory": "runs"}, killed)
    shown = tensorboard_of(tmp_path / "runs")
    assert [step for step, _ in shown["loss"]] == list(range(1, STEPS + 1))
    assert [value for _, value in shown["loss"]] == pytest.approx([value for _, value in undisturbed()])
    assert [value for _, value in shown["rate"]] == pytest.approx([1 / step for step in range(1, STEPS + 1)])
    (first, one), (begun, two) = shown["generation"]
    assert (first, one, two) == (1, 1.0, 2.0)
    assert begun in range(6, 32, 5), "behind the newest common checkpoint"


def test_where_a_step_gives_another_value_the_second_time_tensorboard_shows_that_one(tmp_path: Path) -> None:
    needs_package("tensorboard")
    run_job(tmp_path, {"kind": "tensorboard", "directory": "runs"}, "0", JOB_OTHERWISE="1")
    shown = tensorboard_of(tmp_path / "runs")
    assert len(shown["generation"]) > 1
    expected = [value for _, value in made_in(dict(shown["generation"]))]
    assert [value for _, value in shown["loss"]] == pytest.approx(expected)


TRACKED = {
    "import recovery.torch as rt\n": "import recovery\nimport recovery.torch as rt\n",
    '    rt.join("gloo")\n': '    session = rt.join("gloo")\n    tracker = recovery.Tracker("tensorboard", directory="runs")\n',
    "save_every=20": "save_every=20, callbacks=[tracker]",
    "            loss.backward()\n": "            loss.backward()\n            session.report(loss=loss)\n",
}


def test_in_a_script_with_three_lines_tensorboard_shows_each_step_once_with_its_value(tmp_path: Path) -> None:
    needs_package("tensorboard")
    script = changed()
    for old, new in TRACKED.items():
        assert script.count(old) == 1
        script = script.replace(old, new)
    trained(tmp_path / "undisturbed", script)
    trained(tmp_path / "disturbed", script, "0", "1")
    expected, found = (tensorboard_of(tmp_path / name / "runs") for name in ("undisturbed", "disturbed"))
    assert [step for step, _ in expected["loss"]] == list(range(1, 97))
    assert found["loss"] == expected["loss"]
    assert [number for _, number in found["generation"]] == [1.0, 2.0, 3.0]


@pytest.fixture
def file_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """MLflow without a server or a database: what it stores is the same."""
    needs_package("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return {"kind": "mlflow", "tracking_uri": f"file:{tmp_path}/mlruns"}


def mlflow_of(directory: Path) -> tuple[Any, dict[str, list[tuple[int, float]]]]:
    """The one run that MLflow has, and its history."""
    client = needs_package("mlflow").MlflowClient(f"file:{directory}")
    experiment = client.get_experiment_by_name("recovery")
    [run] = client.search_runs([experiment.experiment_id])
    history = {
        key: sorted((one.step, one.value) for one in client.get_metric_history(run.info.run_id, key))
        for key in run.data.metrics
    }
    return run, history


@pytest.mark.parametrize("killed", ["0", "1"], ids=["the rank that logs", "another"])
def test_mlflow_has_each_step_once_with_its_value_in_one_run(
    tmp_path: Path, killed: str, file_store: dict[str, str]
) -> None:
    run_job(tmp_path, file_store, killed)
    run, history = mlflow_of(tmp_path / "mlruns")
    assert history["loss"] == undisturbed()
    assert history["rate"] == [(step, 1 / step) for step in range(1, STEPS + 1)]
    assert run.data.tags["recovery-generation"] == "2"
    assert "recovery-differs-from-step" not in run.data.tags
    assert run.info.status == "FINISHED"


def test_where_a_step_gives_another_value_the_second_time_mlflow_says_from_where(
    tmp_path: Path, file_store: dict[str, str]
) -> None:
    run_job(tmp_path, file_store, "1", JOB_OTHERWISE="1")
    run, history = mlflow_of(tmp_path / "mlruns")
    begun = int(run.data.tags["recovery-began-at"]) + 1
    assert run.data.tags["recovery-differs-from-step"] == str(begun)
    newest = dict(history["loss"])
    assert [newest[step] for step in range(begun, STEPS + 1)] == [
        pytest.approx(value + 2) for _, value in undisturbed()[begun - 1 :]
    ]


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file, which is a log as LevelDB's: blocks of 32 KiB, in them pieces with checksum, length and kind."""
    block, at, record = 1 << 15, 7, b""
    assert content.startswith(b":W&B")
    while at + 7 <= len(content):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def wandb_of(directory: Path) -> dict[int, dict[str, float]]:
    """The rows of the one offline run that is there, by its own step; each once."""
    record_kind = needs_package("wandb.proto.wandb_internal_pb2").Record
    [file] = directory.glob("wandb/offline-run-*/*.wandb")
    found: dict[int, dict[str, float]] = {}
    for content in wandb_records(file.read_bytes()):
        record = record_kind.FromString(content)
        if record.HasField("history"):
            row = {
                "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                for item in record.history.item
            }
            step = int(row["_step"])
            assert step not in found, f"step {step} is there twice"
            found[step] = row
    return found


@pytest.mark.parametrize("killed", ["0", "1"], ids=["the rank that logs", "another"])
def test_wandb_has_each_step_once_with_its_value_in_one_offline_run(tmp_path: Path, killed: str) -> None:
    needs_package("wandb")
    run_job(tmp_path, {"kind": "wandb", "directory": "tracked", "project": "p"}, killed, JOB_OTHERWISE="1")
    rows = wandb_of(tmp_path / "tracked")
    begun = {step: row["generation"] for step, row in rows.items() if "generation" in row}
    assert len(begun) > 1
    assert [(step, row["loss"]) for step, row in rows.items()] == made_in(begun)
    assert [row["_timestamp"] for row in rows.values()] == sorted(row["_timestamp"] for row in rows.values())


def test_tensorboard_shows_the_newest_generation_whatever_the_clock_of_the_host_before_was(
    tmp_path: Path,
) -> None:
    needs_package("tensorboard")
    from recovery.training import tracker_tensorboard

    for generation, step in ((1, 0), (2, 1)):
        run = TrackedRun("job-1", "job", 1, generation, step)
        logged = tracker_tensorboard.begin(run, directory=tmp_path / "runs")
        logged.log([Row(number, {"loss": generation / 2}, 0) for number in range(step + 1, 4)])
        logged.close(finished=False)
        if generation == 1:
            # Its host was an hour ahead.
            [file] = (tmp_path / "runs" / "job-1").iterdir()
            begin, second, rest = file.name.partition(file.name.split(".")[3])
            file.rename(file.with_name(f"{begin}{int(second) + 3_600:010d}{rest}"))
    assert tensorboard_of(tmp_path / "runs")["loss"] == [(1, 0.5), (2, 1.0), (3, 1.0)]
