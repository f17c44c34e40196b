"""In a TrainJob of Kubeflow the launcher posts, and the Trainer of transformers does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recovery.launch.train_job_posts import for_processes

pytestmark = pytest.mark.trainers

URL = "KUBEFLOW_TRAINER_SERVER_URL"
SWITCH = "DISABLE_KUBEFLOW_INTEGRATION"


@pytest.mark.parametrize("launcher_posts", [False, True])
def test_the_trainer_leaves_the_status_to_a_launcher_that_posts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, launcher_posts: bool
) -> None:
    from transformers import TrainingArguments

    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setenv(URL, "https://trainer.invalid/status")
    if launcher_posts:
        monkeypatch.setenv(SWITCH, for_processes(os.environ)[SWITCH])
    reports = TrainingArguments(output_dir=str(tmp_path), report_to="none", use_cpu=True).report_to
    assert ("kubeflow" in reports) is not launcher_posts
