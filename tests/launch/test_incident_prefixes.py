"""torch writes a rank before each line of a traceback, once per world that was ever formed: an incident finds it all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.launch.incidents import Failure, Incidents, last_lines

TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "a.py", line 1, in <module>',
    "    f()",
    "ValueError: x",
)


@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "[rank2]: [rank0]: "])
def test_a_traceback_is_kept_without_the_ranks_before_its_lines(tmp_path: Path, prefix: str) -> None:
    log = tmp_path / "worker_2.log"
    log.write_text(
        "step 1\n" + "".join(f"{prefix}{line}\n" for line in TRACEBACK) + "[rank2]: a line behind\n"
    )
    incidents = Incidents(tmp_path)
    incidents.note(
        Failure(
            process="worker_2", rank=2, start=1, status="exit code 1", wall="w", consequence="c", log=str(log)
        ),
        last_lines(log),
        begun_ms=0,
        ended_ms=1,
    )
    assert incidents.newest is not None
    assert incidents.newest.traceback == TRACEBACK
    assert incidents.newest.last_lines[-1] == "[rank2]: a line behind", "what was printed stays as it was"
