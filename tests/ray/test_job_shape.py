"""What is asked of a Ray cluster. Needs no Ray."""

from __future__ import annotations

import pytest

from recovery.errors import UsageError
from recovery.ray.job_shape import shape_of


def test_hosts_and_their_resources_follow_from_the_workers() -> None:
    shape = shape_of(num_workers=8, workers_per_host=4, resources_per_worker={"GPU": 1, "CPU": 0}, spares=1)
    assert (shape.hosts, shape.nodes, shape.resources) == (2, 3, {"GPU": 4})
    assert shape.words(2, "10.0.0.1:8118", ["train.py", "--lr", "0.1"]) == (
        *("--nnodes=2", "--nproc_per_node=4", "--spares=1", "--node_rank=2", "--rdzv_endpoint=10.0.0.1:8118"),
        *("train.py", "--lr", "0.1"),
    )
    alone = shape_of(num_workers=1, workers_per_host=1, resources_per_worker=None, spares=0)
    assert alone.resources == {"CPU": 1}


@pytest.mark.parametrize(
    ("asked", "field", "said"),
    [
        ({"num_workers": 0}, "num_workers", "0 is below 1"),
        ({"num_workers": 3, "workers_per_host": 2}, "num_workers", "3 is no multiple of workers_per_host=2"),
        ({"workers_per_host": 0}, "workers_per_host", "0 is below 1"),
        ({"spares": -1}, "spares", "-1 is below 0"),
        ({"resources_per_worker": {"GPU": -1}}, "resources_per_worker", "GPU: -1 is below 0"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(asked: dict[str, int], field: str, said: str) -> None:
    wanted = {"num_workers": 2, "workers_per_host": 1, "resources_per_worker": None, "spares": 0, **asked}
    with pytest.raises(UsageError, match=f"{field}.*{said}"):
        shape_of(**wanted)  # type: ignore[arg-type]  # of several types
