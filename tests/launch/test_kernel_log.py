"""The kernel's own message on a killed process, from the real log; needs root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recovery.launch.kernel_log import message_on

PID = 4_000_000_000
"""No process has it."""


def test_the_kernel_message_is_found_by_the_process_id() -> None:
    line = f"Out of memory: Killed process {PID} (python) total-vm:1kB, a test of recovery msrun\n"
    try:
        with Path("/dev/kmsg").open("w") as log:
            log.write(f"<7>{line}")
        with Path("/dev/kmsg").open("rb", buffering=0) as log:
            os.set_blocking(log.fileno(), False)
            log.read(8_192)
    except OSError as error:
        pytest.skip(f"the kernel's log cannot be used here: {error}")
    assert message_on(PID) == line.strip()
    assert message_on(PID // 10) == ""
