"""Ranks whose state lies on a GPU: a death changes no bit, and who lived keeps its process. Skipped where there is no GPU.

TESTS_WITHOUT_GPU=1 runs what gloo carries on the processor: the tests of the test.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.warm.process import TORCH

HAS_GPU = torch.cuda.is_available()
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not (HAS_GPU or os.environ.get("TESTS_WITHOUT_GPU")), reason="needs a GPU"),
]
JOB = Path(__file__).with_name("gpu_job.py")
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
LIVE, MEMORY = {"MS_ROLLBACK": "live"}, {"MS_MEMORY_CHECKPOINT_STEPS": "1"}


def _steps(directory: Path, rank: int) -> list[dict[str, int]]:
    file = directory / f"steps_{rank}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _train(directory: Path, victim: int | None, **job: str) -> list[str]:
    """The digests of both ranks; a process that was killed, and only that, was another one behind it."""
    directory.mkdir()
    script = directory / "on_gpu.py"
    script.write_text(JOB.read_text(encoding="utf-8"), encoding="utf-8")
    with LaunchedCluster(directory, environment={**DETERMINISTIC, **job}, imports=TORCH) as cluster:
        cluster.start(script=str(script))
        if victim is not None:
            cluster.wait(lambda: len(_steps(directory, victim)) >= 25, "25 steps")
            os.kill(_steps(directory, victim)[-1]["pid"], signal.SIGKILL)
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
    for rank in range(2):
        assert len({line["pid"] for line in _steps(directory, rank)}) == (2 if rank == victim else 1)
    return [(directory / f"digest_{rank}").read_text() for rank in range(2)]


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    "job",
    [
        {"JOB_BACKEND": "gloo"},
        {"JOB_BACKEND": "gloo", **MEMORY},
        {"JOB_BACKEND": "gloo", **LIVE},
        {"JOB_BACKEND": "nccl"},
        {"JOB_BACKEND": "nccl", **LIVE},
        {"JOB_BACKEND": "nccl", "JOB_READS": "0", **LIVE},
    ],
    ids=lambda job: "-".join(job.values()),
)
def test_a_death_of_either_rank_changes_no_bit_and_the_other_keeps_its_process(
    tmp_path: Path, job: dict[str, str], victim: int
) -> None:
    if job["JOB_BACKEND"] == "nccl" and not HAS_GPU:
        pytest.skip("NCCL needs a GPU")
    rollback = {name: value for name, value in job.items() if name != "MS_MEMORY_CHECKPOINT_STEPS"}
    undisturbed = _train(tmp_path / "undisturbed", None, **rollback, JOB_STEP_MS="0")
    assert _train(tmp_path / "killed", victim, **job) == undisturbed
