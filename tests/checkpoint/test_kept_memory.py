"""Memory that is kept: no page of it is fresh twice, and no more is asked for than there is."""

from __future__ import annotations

import os

import pytest

from recovery.checkpoint import staging_buffer
from recovery.checkpoint.staging_buffer import KeptMemory
from tests.open_files import open_files


def test_it_is_kept_while_it_is_large_enough_and_grows_with_some_to_spare() -> None:
    memory = KeptMemory()
    memory.take(1_000_000)[0] = 7
    first = os.fstat(memory.descriptor).st_ino

    assert memory.take(10)[0] == 7
    assert memory.take(1_050_000)[0] == 7, "a sixteenth more was taken at once"
    assert os.fstat(memory.descriptor).st_ino == first

    assert memory.take(2_000_000)[0] == 0
    assert os.fstat(memory.descriptor).st_ino != first
    memory.release()
    assert (memory.size, memory.descriptor) == (0, -1)


def test_more_than_the_machine_has_to_spare_is_refused_and_changes_nothing() -> None:
    memory = KeptMemory()
    memory.take(100)[0] = 7

    with pytest.raises(MemoryError, match="are free"):
        memory.take(staging_buffer.free_bytes())

    assert memory.take(100)[0] == 7
    memory.release()


def test_nothing_of_it_is_left_open() -> None:
    before = open_files()
    for size in (10, 10_000, 10_000_000):
        memory = KeptMemory()
        memory.take(size)
        memory.take(2 * size)
        memory.release()

    assert not open_files() - before
