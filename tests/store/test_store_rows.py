"""What goes in comes out: every record class, any value, by key, in order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine

from recovery.core.records import EventRecord, JobRecord, NodeState, Record, StepRecord
from recovery.errors import StoreError
from recovery.store import rows
from recovery.store.contents import WorkerRecords
from recovery.store.models import METADATA
from recovery.store.paths import worker_path
from recovery.store.reader import read_events
from recovery.store.repository import SchedulerStore, WorkerStore
from recovery.store.rows import SHAPES, record_of, row_of
from recovery.store.stored_records import records_of
from tests.store.any_records import ONE_OF_EACH, WALL_MS, any_of, checkpoint, event, generation, job, node

MEMORY = Path("memory")


def written(connection: Connection, records: list[msgspec.Struct]) -> None:
    for record in records:
        connection.execute(SHAPES[type(record)].write, [row_of(record, WALL_MS)])


@pytest.mark.parametrize("kind", SHAPES, ids=lambda kind: kind.__name__)
def test_any_record_comes_back_as_it_went_in(kind: type[msgspec.Struct]) -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        METADATA.create_all(connection)

        @given(any_of(kind))
        def comes_back(record: msgspec.Struct) -> None:
            connection.execute(SHAPES[kind].table.delete())
            written(connection, [record])
            assert records_of(connection, kind, MEMORY) == (record,)

        comes_back()
    engine.dispose()


def test_a_real_file_holds_the_last_record_of_each_key(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)
    connection = store._database.connection

    @given(st.lists(st.one_of([any_of(kind) for kind in SHAPES if kind is not EventRecord]), max_size=8))
    def holds(records: list[msgspec.Struct]) -> None:
        newest = {}
        for record in records:
            shape = SHAPES[type(record)]
            key = tuple(getattr(record, name, None) for name in shape.key)
            newest[shape.table.name, key] = record
        with connection.begin():
            for shape in SHAPES.values():
                connection.execute(shape.table.delete())

        store.apply(records, wall_ms=WALL_MS)  # type: ignore[arg-type]  # drawn from the same classes

        with connection.begin():
            found = [record for kind in SHAPES for record in records_of(connection, kind, MEMORY)]
        assert sorted(map(repr, found)) == sorted(map(repr, newest.values()))

    holds()
    store.close()


def test_every_class_of_record_has_a_table() -> None:
    assert set(SHAPES) == set(get_args(Record))


def test_every_table_has_exactly_the_columns_of_its_record() -> None:
    for shape in SHAPES.values():
        bookkeeping = {"one", "sequence", "wall_ms", "digest"}
        columns = [column.name for column in shape.table.columns if column.name not in bookkeeping]
        assert columns == [*shape.columns]


def test_a_written_key_is_replaced_and_an_event_is_appended(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)

    store.apply([node(), event(1)], wall_ms=WALL_MS)
    store.apply([node(state=NodeState.LOST, rank=None), event(1)], wall_ms=WALL_MS + 1)

    assert store.load().nodes == (node(state=NodeState.LOST, rank=None),)
    found = read_events(tmp_path)
    assert [(line.sequence, line.wall_ms, line.event) for line in found] == [
        (1, WALL_MS, event(1)),
        (2, WALL_MS + 1, event(1)),
    ]
    store.close()


def test_a_renamed_job_stays_one_row(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)

    store.apply([job(1), msgspec.structs.replace(job(2), job="another")], wall_ms=WALL_MS)

    assert store.load().job == msgspec.structs.replace(job(2), job="another")
    store.close()


def test_the_state_comes_in_the_order_of_its_keys(tmp_path: Path) -> None:
    store = SchedulerStore.open(tmp_path)

    store.apply(
        [checkpoint(9, 1), checkpoint(10, 0), checkpoint(9, 0), generation(2), generation(1)], wall_ms=0
    )

    state = store.load()
    assert [(record.step, record.rank) for record in state.checkpoints] == [(9, 0), (9, 1), (10, 0)]
    assert [record.generation for record in state.generations] == [1, 2]
    store.close()


def test_a_worker_finds_its_directories_checkpoints_step_and_node_again(tmp_path: Path) -> None:
    store = WorkerStore.open(tmp_path, "worker_3")
    assert store.load() == WorkerRecords()

    store.apply(ONE_OF_EACH, wall_ms=WALL_MS)
    store.close()

    store = WorkerStore.open(tmp_path, "worker_3")
    state = store.load()
    kinds = {type(record): record for record in ONE_OF_EACH}
    assert (state.step, state.node) == (kinds[StepRecord], node())
    assert len(state.directories) == len(state.checkpoints) == 1
    store.close()


@pytest.mark.parametrize("name", ["../scheduler", "", "a/b", "a\n", ".hidden", "a" * 65])
def test_what_is_no_node_id_never_names_a_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(AssertionError, match="is no node id"):
        worker_path(tmp_path, name)


@pytest.mark.parametrize("value", ["\ud800", 2**63])
def test_a_value_that_no_file_can_hold_fails_the_write(tmp_path: Path, value: object) -> None:
    store = SchedulerStore.open(tmp_path)
    bad = node(host=value) if isinstance(value, str) else node(pid=value)

    with pytest.raises(StoreError, match=r"STORE_WRITE: .*cannot be stored"):
        store.apply([job(), bad], wall_ms=WALL_MS)

    store.close()
    store = SchedulerStore.open(tmp_path)
    assert store.load().job is None, "nothing of a batch that failed may be there"
    store.close()


def _in_order(record: type[msgspec.Struct], row: Mapping[str, Any]) -> list[Any]:
    """A row as it comes from the file; the columns that only SQLite fills are 1."""
    return [row.get(column.name, 1) for column in SHAPES[record].table.columns]


def test_no_field_of_a_row_can_change_unseen() -> None:
    for record in ONE_OF_EACH:
        row = row_of(record, WALL_MS)
        for column in row:
            old = row[column]
            for new in (None, 0, 1, "", "another", old + 1 if isinstance(old, int) else f"{old} "):
                if new == old and type(new) is type(old):
                    continue
                with pytest.raises(StoreError, match="STORE_CORRUPT") as caught:
                    record_of(type(record), _in_order(type(record), {**row, column: new}), MEMORY)
                assert f"of table {SHAPES[type(record)].table.name} " in str(caught.value)


def test_a_row_of_an_unknown_state_is_refused_although_its_digest_fits() -> None:
    row = row_of(msgspec.convert({**msgspec.to_builtins(job()), "state": "running"}, JobRecord), WALL_MS)
    strange = msgspec.structs.replace(job(), state="paused")

    with pytest.raises(StoreError, match=r"STORE_CORRUPT: .*no release wrote"):
        record_of(JobRecord, _in_order(JobRecord, row_of(strange, WALL_MS)), MEMORY)

    assert record_of(JobRecord, _in_order(JobRecord, row), MEMORY) == job()


def test_the_tables_of_two_classes_never_share_a_digest() -> None:
    digests = [row_of(record, WALL_MS)["digest"] for record in ONE_OF_EACH]

    assert all(one != other for one, other in itertools.combinations(digests, 2))


def test_an_id_that_other_rows_carry_is_not_this_workers(tmp_path: Path) -> None:
    store = WorkerStore.open(tmp_path, "worker_4")

    store.apply([node("worker_3")], wall_ms=WALL_MS)

    assert store.load().node is None
    store.close()


def test_a_row_that_was_moved_to_another_table_does_not_match_its_digest() -> None:
    values = ["the same", 1]
    digests = {rows._digest(shape, values, WALL_MS) for shape in SHAPES.values()}
    assert len(digests) == len(SHAPES)
