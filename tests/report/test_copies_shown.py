"""Who holds copies is shown with each checkpoint, the same from the files and from a running scheduler; and whether its own file is there."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from recovery.cli.formats import Format, show_rows
from recovery.core.scheduler.views import checkpoints_view
from recovery.report import stored, tables
from recovery.store.repository import SchedulerStore
from tests.core.copiers import RULES, orders, reports, servers
from tests.core.desk import Desk
from tests.store.any_records import WALL_MS, checkpoint, copy


@pytest.fixture
def desk() -> Desk:
    """Two hosts: of step 10 each has a copy for the other, of step 20 only one has."""
    desk = Desk(RULES)
    first, second = servers(desk)
    for step in (10, 20):
        for worker in (first, second):
            worker.save(step)
        reports(first, orders(first)[-1])
        if step == 10:
            reports(second, orders(second)[-1])
    return desk


def shown(rows: list[dict[str, object]]) -> list[tuple[object, object, object]]:
    return [(row["step"], row["rank"], row["copies"]) for row in rows]


def test_a_running_scheduler_and_its_store_say_who_holds_copies(desk: Desk, tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    store.apply([*desk.rows.values(), *desk.events], wall_ms=WALL_MS)
    store.close()

    expected = [
        (20, 0, ()),
        (20, 1, ("worker_0",)),
        (10, 0, ("worker_1",)),
        (10, 1, ("worker_0",)),
    ]
    live = checkpoints_view(desk.machine.state)
    assert sorted(shown(live)) == sorted(expected)
    state = stored.read_stored(tmp_path)
    assert shown(tables.checkpoint_rows(state.checkpoints, state.copies)) == expected


def test_a_copy_of_another_history_is_not_shown() -> None:
    [row] = tables.checkpoint_rows(
        [checkpoint(20)], [copy(20), msgspec.structs.replace(copy(20), digest="e" * 64)]
    )
    assert row["copies"] == ("worker_1",)
    [row] = tables.checkpoint_rows([checkpoint(20)], [msgspec.structs.replace(copy(20), digest="e" * 64)])
    assert row["copies"] == ()


def test_a_file_that_was_taken_away_is_not_shown_as_if_it_were_there(tmp_path: Path) -> None:
    (tmp_path / "20.ckpt").touch()
    # The last cannot even be asked for: its name is too long for a file system.
    places = [
        *(tmp_path / "20.ckpt", tmp_path / "10.ckpt"),
        *(tmp_path / "on another host" / "5.ckpt", tmp_path / f"{'3' * 300}.ckpt"),
    ]
    saved = [
        msgspec.structs.replace(checkpoint(step), path=str(path))
        for step, path in zip((20, 10, 5, 3), places, strict=True)
    ]
    rows = tables.checkpoint_rows(saved, ())
    assert [(row["step"], row["file"]) for row in rows] == [
        (20, "here"),
        (10, "removed"),
        (5, None),
        (3, None),
    ]


def test_several_holders_are_words_of_one_cell(capsys: pytest.CaptureFixture[str]) -> None:
    view = tables.CHECKPOINTS.only("step", "copies")
    for form in (Format.CSV, Format.TABLE):
        show_rows(view, [{"step": 20, "copies": ("worker_0", "worker_2")}, {"step": 10, "copies": []}], form)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["step,copies"],
        ["20,worker_0", "worker_2"],
        ["10,"],
        ["step", "copies"],
        ["20", "worker_0", "worker_2"],
        ["10"],
    ]
