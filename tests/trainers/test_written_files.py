"""The record of Lightning's checkpoints that a job has written, where a process was killed in the middle of a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from recovery.lightning import written_files

pytestmark = pytest.mark.trainers


class At(NamedTuple):
    step: int
    job: str = "job"
    run: int = 1


def test_a_line_behind_half_a_line_is_read_and_its_file_goes_with_its_step(tmp_path: Path) -> None:
    kept, torn, behind = (tmp_path / f"{name}.ckpt" for name in ("kept", "torn", "behind"))
    session: Any = At(4)
    written_files.note(session, kept)
    with (tmp_path / ".recovery_written.jsonl").open("ab") as record:
        record.write(b'{"job":"job","run":1,"st')
    written_files.note(session._replace(step=9), behind)
    for file in (kept, torn, behind):
        file.touch()
    written_files.take_back(session._replace(step=5), tmp_path)
    assert (kept.exists(), torn.exists(), behind.exists()) == (True, True, False)
