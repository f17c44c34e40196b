"""What must not outlive the program is left to exec: it stays open under the threads that use it."""

from __future__ import annotations

import os

from recovery.worker.descriptors import close_all_at_exec


def test_descriptors_are_marked_for_exec_and_stay_open_until_then() -> None:
    reading, writing = os.pipe()
    try:
        os.set_inheritable(reading, True)
        close_all_at_exec()
        os.write(writing, b"x")
        assert os.read(reading, 1) == b"x"
        assert not os.get_inheritable(reading)
        assert os.get_inheritable(2), "the standard ones are the next program's too"
    finally:
        os.close(reading)
        os.close(writing)
