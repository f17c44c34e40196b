"""Kept memory is pinned once, let go before it is unmapped, and a driver that refuses costs a line. The driver is pretended: no device is here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from recovery.checkpoint.staging_buffer import KeptMemory, Mapping
from recovery.torch import file_layout

SIZE = 8_192


class _Driver:
    """Answers as the driver would, and notes what is mapped when it is told to let go."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.registered: list[tuple[int, int]] = []
        self.let_go: list[int] = []
        self.still_mapped: Callable[[], bool] = lambda: True

    def cudaHostRegister(self, address: int, size: int, _flags: int) -> int:  # noqa: N802 - the driver's name
        self.registered.append((address, size))
        return self.code

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - as above
        assert self.still_mapped()
        self.let_go.append(address)
        return 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    pretended = _Driver()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: pretended)
    return pretended


def mapped() -> memoryview:
    return memoryview(Mapping(-1, SIZE))


def is_mapped(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text(encoding="ascii").splitlines():
        begin, _, end = line.partition(" ")[0].partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return True
    return False


def test_memory_is_pinned_once_and_let_go_while_it_is_still_there(driver: _Driver) -> None:
    memory = mapped()
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    driver.still_mapped = lambda: is_mapped(address)
    file_layout.pin(memory)
    file_layout.pin(memory)
    assert driver.registered == [(address, SIZE)]
    assert driver.let_go == []
    del memory
    assert driver.let_go == [address]


def test_memory_that_comes_to_the_same_place_is_pinned_again(driver: _Driver) -> None:
    for _ in range(2):
        memory = mapped()
        file_layout.pin(memory)
        del memory
    assert len(driver.registered) == len(driver.let_go) == 2


def test_kept_memory_that_grows_lets_go_of_what_it_was(driver: _Driver) -> None:
    kept = KeptMemory()
    file_layout.pin(kept.take(SIZE))
    file_layout.pin(kept.take(10 * SIZE))
    first, second = (address for address, _ in driver.registered)
    assert driver.let_go == [first]
    kept.release()
    assert driver.let_go == [first, second]


def test_memory_that_is_not_kept_is_not_pinned(driver: _Driver) -> None:
    file_layout.pin(memoryview(bytearray(SIZE)))
    assert driver.registered == []


def test_a_driver_that_refuses_is_asked_once_and_costs_a_line(
    driver: _Driver, caplog: pytest.LogCaptureFixture
) -> None:
    driver.code = 2
    memory = mapped()
    file_layout.pin(memory)
    file_layout.pin(memory)
    assert caplog.text.count("event=memory_not_pinned code=2") == 1
    del memory
    assert driver.let_go == []


def test_a_fork_leaves_its_parents_driver_alone(driver: _Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = mapped()
    file_layout.pin(memory)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    del memory
    assert driver.let_go == []
