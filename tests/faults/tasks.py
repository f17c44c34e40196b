"""What is interrupted at every system call: tasks of a scheduler, each with its real store.

A task is prepared once (in a directory that is copied for each try), then done in a child that tells each moment at which something
was acknowledged. Nothing in it is drawn, so what the store holds after its k-th write is known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from alembic import command, config
from typing_extensions import override

from recovery.core import messages as m
from recovery.core.effects import Persist
from recovery.core.rules import Rules
from recovery.store import connections, migrations
from recovery.store.contents import SchedulerRecords
from recovery.store.reader import read_events
from recovery.store.repository import SchedulerStore
from tests.core.desk import Desk, Worker, running_workers
from tests.faults.task import Acknowledge, Task

IMPORTED_HERE = (command, config)
"""Once for all children of the migration: the store imports them only when a file is of an older release."""

RULES = Rules(worker_count=2, rejoin_window_ms=0)
Actors = TypeVar("Actors")
"""Whoever speaks in a scenario."""

REVISIONS = (*migrations.REVISIONS, "9001", "9002")
"""The real schemas and two that only the task of migration knows."""


class StoredDesk(Desk):
    """A cluster machine whose writes go to a real store first, if there is one."""

    store: SchedulerStore | None = None
    acknowledge: Acknowledge = staticmethod(lambda: None)

    @override
    def _write(self, persist: Persist) -> None:
        if self.store is not None and persist.records:
            self.store.apply(persist.records, wall_ms=1)
        super()._write(persist)
        if self.store is not None and persist.records:
            self.acknowledge()


def find_store(place: Path) -> tuple[SchedulerRecords, int]:
    """Open as a restarted scheduler does."""
    with closing(SchedulerStore.open(place)) as store:
        return store.load(), len(read_events(place, limit=10_000))


# --- the scheduler -------------------------------------------------------------------------------------------------------


def _nothing(place: Path) -> object:
    place.mkdir()
    return None


def _start(place: Path, _: object, acknowledge: Acknowledge) -> None:
    store = SchedulerStore.open(place)
    acknowledge()
    desk = Desk(RULES)
    store.apply([*desk.rows.values(), *desk.events], wall_ms=1)
    acknowledge()
    store.close()


def _stored(place: Path, scenario: Callable[[StoredDesk], list[Worker]]) -> object:
    """A desk that has been through a scenario, with its store written and closed."""
    desk = StoredDesk(RULES)
    return write_all(place, desk, scenario(desk))


def write_all(place: Path, desk: StoredDesk, actors: Actors) -> object:
    """Write a desk's store and close it. Gives what `go_on` takes."""
    place.mkdir()
    store = SchedulerStore.open(place)
    store.apply([*desk.rows.values(), *desk.events], wall_ms=1)
    store.close()
    return desk, actors


def go_on(
    place: Path,
    prepared: object,
    acknowledge: Acknowledge,
    scenario: Callable[[StoredDesk, Actors], None],
) -> None:
    """Play a scenario with what was prepared, every write of it into the store."""
    assert isinstance(prepared, tuple)
    desk, actors = prepared
    desk.store, desk.acknowledge = SchedulerStore.open(place), acknowledge
    acknowledge()
    scenario(desk, actors)
    desk.store.close()


def _register(desk: StoredDesk, _: list[Worker]) -> None:
    desk.restart()
    running_workers(desk)


def _change_generation(desk: StoredDesk, workers: list[Worker]) -> None:
    first, second = workers
    second.die()
    desk.at(desk.now + 1_000)
    relaunched = Worker(desk, "worker_1")
    relaunched.register()
    first.ready(*held(first, 10))
    relaunched.ready(*held(relaunched, 10))


def held(worker: Worker, *steps: int) -> tuple[m.HeldCheckpoint, ...]:
    """The files of a worker's rank, as the scheduler knows them."""
    records = worker.desk.machine.state.checkpoints
    rank = worker.desk.machine.state.nodes[worker.node_id].record.rank
    assert rank is not None, "the world is formed"
    return tuple(found for step in steps if (found := records.file_of(rank, step)) is not None)


def _commit(desk: StoredDesk, workers: list[Worker]) -> None:
    for step in (20, 30):
        for worker in workers:
            worker.save(step)


def _formed(desk: StoredDesk) -> list[Worker]:
    workers = running_workers(desk)
    for worker in workers:
        worker.save(10)
    return workers


# --- migration -----------------------------------------------------------------------------------------------------------


def _write_versions(place: Path) -> Path:
    versions = place.parent / "versions"
    versions.mkdir(exist_ok=True)
    for source in migrations.VERSIONS.glob("0*.py"):
        (versions / source.name).write_bytes(source.read_bytes())
    for older, newer, column in zip(REVISIONS[-3:], REVISIONS[-2:], ("colour", "shape"), strict=False):
        (versions / f"{newer}_{column}.py").write_text(
            f"from alembic import op\nimport sqlalchemy as sa\nrevision, down_revision = '{newer}', '{older}'\n"
            f"def upgrade():\n    op.add_column('meta', sa.Column('{column}', sa.Text))\n"
            f"    op.execute(\"UPDATE meta SET {column} = 'x'\")\n"
        )
    return versions


def _old_file(place: Path) -> object:
    _stored(place, _formed)
    return _write_versions(place)


def _migrate(place: Path, versions: object, acknowledge: Acknowledge) -> None:
    assert isinstance(versions, Path)
    file = place / "scheduler.db"
    # As Database opens a file, but with revisions of our own.
    with connections.translated(file, reading=False):
        connection = connections.connect(file, wal=True)
        migrations.migrate(connection, file, revisions=REVISIONS, versions=versions)
        acknowledge()
        connection.close()


def find_schema(place: Path) -> tuple[object, ...]:
    """Revision, columns and rows of the table that the migrations change: of one schema, never of two."""
    file = place / "scheduler.db"
    connection = connections.connect(file, wal=True)
    try:
        revision = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        rows = connection.exec_driver_sql("SELECT * FROM meta ORDER BY name").mappings().all()
        nodes = connection.exec_driver_sql("SELECT count(*) FROM nodes").scalar()
        return revision, tuple(tuple(sorted(row.items())) for row in rows), nodes
    finally:
        connection.close()


TASKS = (
    Task("scheduler start", _nothing, _start, find_store),
    Task(
        "register",
        lambda place: _stored(place, lambda _: []),
        lambda place, prepared, acknowledge: go_on(place, prepared, acknowledge, _register),
        find_store,
    ),
    Task(
        "generation change",
        lambda place: _stored(place, _formed),
        lambda place, prepared, acknowledge: go_on(place, prepared, acknowledge, _change_generation),
        find_store,
    ),
    Task(
        "checkpoint commit",
        lambda place: _stored(place, _formed),
        lambda place, prepared, acknowledge: go_on(place, prepared, acknowledge, _commit),
        find_store,
    ),
    Task("migration", _old_file, _migrate, find_schema),
)
