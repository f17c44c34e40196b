"""What the comparison of benchmarks/recover.py takes for a recovery."""

from __future__ import annotations

import json
from pathlib import Path

from parts import durations, ends
from rank_log import RankLog, Recovery
from rows import row


def written(path: Path, *lines: tuple[int, int, int, float]) -> RankLog:
    """A log of these steps: rank, step, pid, wall ms."""
    with path.open("a", encoding="utf-8") as log:
        for rank, step, pid, wall_ms in lines:
            log.write(json.dumps({"rank": rank, "step": step, "pid": pid, "wall_ms": wall_ms}) + "\n")
    return RankLog(path)


def test_a_recovery_is_over_when_every_rank_has_applied_one_and_the_same_step(tmp_path: Path) -> None:
    log = written(
        tmp_path / "log",
        *[(0, 7, 10, 900.0), (1, 7, 11, 900.0), (0, 8, 10, 990.0), (1, 8, 11, 991.0)],
        *[(0, 6, 10, 1500.0), (1, 6, 21, 1520.0), (0, 7, 10, 1600.0), (1, 7, 21, 1601.0)],
    )

    recovery = log.recovery(1, 11, 1000.0, 2)

    assert recovery == Recovery(rank=1, killed_ms=1000.0, done_ms=1520.0, first_step=6, steps_lost=3)
    assert recovery.took_ms == 520.0


def test_a_step_of_the_killed_process_counts_for_no_recovery(tmp_path: Path) -> None:
    log = written(tmp_path / "log", (0, 8, 10, 1001.0), (1, 8, 11, 1002.0))

    assert log.recovery(1, 11, 1000.0, 2) is None


def test_a_survivor_that_applied_another_step_than_the_successor_is_waited_for(tmp_path: Path) -> None:
    log = written(tmp_path / "log", (1, 7, 11, 900.0), (0, 8, 10, 1001.0), (1, 6, 21, 1500.0))
    assert log.recovery(1, 11, 1000.0, 2) is None

    written(tmp_path / "log", (0, 6, 10, 1530.0))

    recovery = log.recovery(1, 11, 1000.0, 2)
    assert recovery is not None
    assert (recovery.done_ms, recovery.steps_lost) == (1530.0, 2)


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = written(path, (0, 1, 10, 1.0))
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole + whole[:9], encoding="utf-8")
    log.look()

    path.write_text(whole + whole, encoding="utf-8")
    log.look()

    assert len(log.steps) == 2


def test_parts_follow_each_other_and_add_up_to_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    written(path, (1, 7, 11, 900.0), (0, 6, 10, 1500.0), (1, 6, 21, 1520.0))
    with path.open("a", encoding="utf-8") as log:
        log.write('{"mark": "entered", "rank": null, "pid": 21, "wall_ms": 1300.0, "born_ms": 1100.0}\n')
        log.write('{"mark": "world", "rank": 1, "pid": 21, "wall_ms": 1400.0}\n')
        log.write('{"mark": "world", "rank": 0, "pid": 10, "wall_ms": 1410.0}\n')
    ranks = RankLog(path)
    recovery = ranks.recovery(1, 11, 1000.0, 2)
    assert recovery is not None

    parts = durations(recovery, ends(recovery, ranks, []))

    assert parts == {"start": 100.0, "imports": 200.0, "rendezvous": 110.0, "first_step": 110.0}
    assert sum(parts.values()) == recovery.took_ms


def test_p99_of_few_measurements_is_the_worst() -> None:
    assert row("mode", 4, [3.0, 1.0, 2.0], [5, 6, 7])["p99_ms"] == 3.0
