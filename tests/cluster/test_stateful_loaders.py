"""A loader with a position of its own, the user's or torchdata's: the same bits, and every sample exactly once, wherever a job is killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.test_epoch_ends import evaluating
from tests.cluster.undisturbed import Undisturbed
from tests.needs import needs_package

pytestmark = pytest.mark.cluster

SAMPLES, EPOCHS = 640, 2
IN_AN_EPOCH = SAMPLES // 2 // 8
"""Steps of two ranks, in batches of 8."""

CASES = {
    "own, saved in one directory": {"JOB_DATA": "own", "JOB_LAYOUT": "shared"},
    "torchdata's": {"JOB_DATA": "stateful"},
    "torchdata's, two loader processes": {"JOB_DATA": "stateful", "JOB_NUM_WORKERS": "2"},
    "torchdata's, a stream, two loader processes": {"JOB_DATA": "stateful stream", "JOB_NUM_WORKERS": "2"},
}
PLACES = {
    "in the middle of an epoch": (IN_AN_EPOCH + 13, "10"),
    "at an epoch's last step": (IN_AN_EPOCH + 1, str(IN_AN_EPOCH)),
    "in the evaluation behind the loop": (-1, "7"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", CASES)
def test_a_kill_costs_no_sample_and_uses_none_twice(
    tmp_path: Path, undisturbed: Undisturbed, case: str, place: str
) -> None:
    if CASES[case]["JOB_DATA"] != "own":
        needs_package("torchdata.stateful_dataloader")
    held, save_steps = PLACES[place]
    environment = {
        **CASES[case],
        "JOB_SAMPLES": str(SAMPLES),
        "JOB_EPOCHS": str(EPOCHS),
        "JOB_SAVE_STEPS": save_steps,
    }
    with Cluster(
        tmp_path, workers=2, environment={**environment, "JOB_HELD_STEP": str(held), "JOB_STEP_MS": "0"}
    ) as cluster:
        cluster.start()
        if held > 0:
            cluster.wait_step(held - 1)
        else:
            cluster.wait(lambda: evaluating(tmp_path) == 2, "evaluation on both ranks")
        cluster.kill_and_relaunch("worker_1")
        cluster.go_on()
        cluster.wait_end()
        cluster.check_same_as(undisturbed(workers=2, **environment))

    orders = []
    for epoch in range(EPOCHS):
        steps = range(epoch * IN_AN_EPOCH + 1, (epoch + 1) * IN_AN_EPOCH + 1)
        orders.append([number for rank in cluster.samples() for step in steps for number in rank[step]])
        assert Counter(orders[-1]) == Counter(range(SAMPLES)), "the ledger of an epoch"
    assert "stream" in case or orders[0] != orders[1], "every pass has an order of its own"
