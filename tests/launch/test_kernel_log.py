"""The kernel's own message on a killed process, from the real log; needs root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.launch.kernel_log import KernelLog
from tests.needs import needs_kernel

PID = 4_000_000_000
"""No process has it."""


def _say(line: str) -> None:
    try:
        with Path("/dev/kmsg").open("w") as log:
            log.write(f"<7>{line}\n")
        with Path("/dev/kmsg").open("rb", buffering=0) as log:
            os.set_blocking(log.fileno(), False)
            log.read(8_192)
    except OSError as error:
        needs_kernel(f"a log that may be written and read ({error})")


@pytest.fixture
def log() -> Iterator[KernelLog]:
    made = KernelLog()
    yield made
    made.close()


def test_the_kernel_message_is_found_by_the_process_id(log: KernelLog) -> None:
    line = f"Out of memory: Killed process {PID} (python) total-vm:1kB, a test of recovery msrun"
    _say(line)
    assert log.message_on(PID) == line
    assert log.message_on(PID) == line, "it is kept"
    assert log.message_on(PID // 10) == ""


def test_what_was_said_before_is_of_another_process(log: KernelLog) -> None:
    _say(f"Out of memory: Killed process {PID} (python) an earlier one of this number")
    later = KernelLog()
    assert later.message_on(PID) == ""
    later.close()
    assert later.message_on(PID) == ""
    assert "earlier" in log.message_on(PID)
