"""An end that lies behind what is done is refused, and what the refusal says to do goes on from the last checkpoint; on two hosts too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from recovery.errors import ROWS
from recovery.report.stored import read_stored
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.small_job import BATCHES, value_after
from tests.cluster.test_launcher import assert_nothing_left
from tests.cluster.test_launcher_hosts import SECOND, start_first, start_second
from tests.faults.hosts import Host, host

__all__ = ["host"]

pytestmark = pytest.mark.cluster


def results(directory: Path, workers: int) -> list[str]:
    """With what the ranks have ended."""
    return [(directory / f"result_{rank}").read_text() for rank in range(workers)]


def expected(epochs: int, workers: int) -> list[str]:
    """With what an undisturbed training of so many epochs ends."""
    return [value_after(rank, "", range(1, epochs * BATCHES + 1)) for rank in range(workers)]


def said_by(cluster: LaunchedCluster, name: str) -> str:
    """What this start of a launcher has said."""
    return cluster.log(name).rpartition(_BEGIN)[2]


_BEGIN = "--- another start\n"


def begin_log(directory: Path, *names: str) -> None:
    """The log of a launcher goes on where that of the one before ended."""
    for name in names:
        with (directory / f"{name}.log").open("a") as log:
            log.write(_BEGIN)


def ended(directory: Path, epochs: int, *flags: str) -> tuple[int, str]:
    """Its exit code, and what the launcher has said."""
    begin_log(directory, LAUNCHER)
    with LaunchedCluster(directory, environment={"JOB_EPOCHS": str(epochs)}) as cluster:
        cluster.start(*flags)
        code = cluster.wait_exit(LAUNCHER)
        assert_nothing_left(cluster)
        return code, said_by(cluster, LAUNCHER)


def test_what_a_refused_end_names_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    assert ended(tmp_path, 2)[0] == 0
    code, said = ended(tmp_path, 3)
    assert code == ROWS["SETTING_RANGE"].exit_code, said
    [go_on] = re.findall(r"(--continue\S*) goes on from step 40, to a later end", said)

    code, said = ended(tmp_path, 1, go_on)
    assert code == ROWS["USAGE"].exit_code, said
    assert re.search(
        r"epochs: 1 is less than what this job has done: .* step 40.* Give a later end, or", said
    )
    assert results(tmp_path, 2) == expected(2, 2), "the files of the finished job were written over"

    code, said = ended(tmp_path, 3, go_on)
    assert code == 0, said
    assert results(tmp_path, 2) == expected(3, 2)
    assert read_stored(tmp_path / "recovery").job.run == 1


def test_two_hosts_are_refused_by_name_and_go_on_from_the_last_checkpoint(tmp_path: Path, host: Host) -> None:
    def both_ended(epochs: int, *flags: str) -> tuple[set[int], list[str]]:
        begin_log(tmp_path, LAUNCHER, SECOND)
        with LaunchedCluster(tmp_path, workers=4, environment={"JOB_EPOCHS": str(epochs)}) as cluster:
            start_first(cluster, host, *flags)
            start_second(cluster, host, *flags)
            codes = {cluster.wait_exit(LAUNCHER), cluster.wait_exit(SECOND)}
            assert_nothing_left(cluster)
            return codes, [said_by(cluster, name) for name in (LAUNCHER, SECOND)]

    assert both_ended(2)[0] == {0}
    codes, said = both_ended(3)
    assert codes == {ROWS["SETTING_RANGE"].exit_code}, said
    assert all("--continue=True goes on from step 40, to a later end" in each for each in said)

    codes, said = both_ended(1, "--continue=True")
    assert codes == {ROWS["USAGE"].exit_code}, said
    assert all("epochs: 1 is less than what this job has done" in each for each in said)

    codes, said = both_ended(3, "--continue=True")
    assert codes == {0}, said
    assert results(tmp_path, 4) == expected(3, 4)
    assert read_stored(tmp_path / "recovery").job.run == 1
