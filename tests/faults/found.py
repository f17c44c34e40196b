"""Bugs of the engine that the fault work found. Each row says what would have happened to a user."""

from __future__ import annotations

from typing import NamedTuple


class Found(NamedTuple):
    """One bug."""

    what: str
    by: str
    """Which work found it, with the seed if it had one."""
    kept: str
    """Test that keeps it fixed, and the commit that fixed it."""


FOUND = (
    Found(
        "A damaged frame in the -wal passed for its end: acknowledged rows went missing silently",
        "flips",
        '`tests/store/test_commits.py`; "Count the writes of a store"',
    ),
    Found(
        "A file system that was gone ended the writer's thread by an error that nobody caught; every answer waited for ever",
        "power cuts, seed 1",
        "`tests/store/test_failing_disks.py`, `tests/store/test_writer.py`; 45b0a38",
    ),
    Found(
        "All committed checkpoints gone: training began again at step 0 instead of saying so",
        "a planted bug that survived",
        "`tests/core/test_next_plan.py`; 64aaad8",
    ),
    Found(
        "A directory made above the recovery path was not durable: a power cut could take the whole store",
        "a planted bug that survived",
        "`tests/store/test_store_names.py`, `tests/checkpoint/test_new_directories.py`; a209be8",
    ),
    Found(
        "A checkpoint report repeated after a scheduler restart took the commit back",
        "simulation, seed 228",
        "`tests/core/test_sent_again.py`, the seed; 3560388",
    ),
    Found(
        "A process that was fenced, or of another job, began a new run of a finished job",
        "simulation, seed 226",
        "`tests/core/test_sent_again.py`, the seed; 3560388",
    ),
    Found(
        "Retention deleted the step before the newest committed one, which a damaged newest file sends everybody back to",
        "simulation, seeds 106, 225, 300",
        "`tests/core/test_retention.py`, the seeds; 3560388",
    ),
    Found(
        "The late save of a partitioned process overwrote a newer generation's file",
        "simulation of partitions",
        "`tests/checkpoint/test_publish.py`; 3560388",
    ),
    Found(
        "2,000 strangers at once: accept ran out of descriptors and a good worker waited 2 s for its answer",
        "hostile peers",
        "`tests/faults/test_hostile_peers.py`; 031cb20",
    ),
    Found(
        "A generation number of 2^63 from an admitted node could not be stored and would have ended the scheduler",
        "reading for I17",
        "`tests/transport/test_wire_codec.py`; 29667b8",
    ),
    Found(
        "Ranks of which some were interrupted while they formed a world waited for each other for ever in the next one",
        "the cluster tests, four at a time on a slow machine",
        "`tests/torch/test_process_group.py`, `tests/cluster/test_recovery.py`; 7950542",
    ),
    Found(
        "A committed file was damaged and its rank lost: every standby declined, nobody else ever came, and the job failed after MS_TOPO_TIMEOUT",
        "simulation with standbys, seeds 8 and 26",
        '`tests/core/test_takeover.py`; "Let a successor take a rank with what it can read"',
    ),
    Found(
        "A standby that had been offered a rank never said again what it knew itself, and a lost store waited for that word for ever",
        "simulation with standbys, seeds 10, 26 and 38",
        '`tests/core/test_standby_worker.py`; "Let a successor take a rank with what it can read"',
    ),
    Found(
        "A standby that declined a rank, was asked again and declined again became an event and two lines each time",
        "thousands of claims and refusals by standbys",
        '`tests/core/test_takeover_growth.py`; "Tell once why a standby declines, however often it is asked"',
    ),
)
