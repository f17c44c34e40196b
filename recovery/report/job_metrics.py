"""The metrics of a job from its files, and of one whose scheduler runs from what that knows besides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recovery.core.records import GenerationRecord
from recovery.report.metrics import Facts, Now, is_over
from recovery.report.metrics_text import text_of
from recovery.report.status import status
from recovery.report.stored import read_stored
from recovery.report.timeline import Timeline, read_timeline, timeline_of_files


def facts_of_path(path: Path, now_ms: int) -> tuple[Facts, tuple[str, ...]]:
    """What the files of a recovery path say, and whose records could not be read, as sentences. Errors as of `read_stored`.

    Args:
        path: the recovery path.
        now_ms: by the wall clock.
    """
    stored = read_stored(path)
    found = status(stored)
    timeline, unreadable = read_timeline(stored)
    age_ms = None
    # A worker that runs notes every few seconds how far it is, whether it comes further or not.
    if timeline.trained_ms and is_over(found["state"]):
        age_ms = max(0, now_ms - timeline.trained_ms)
    return Facts(Now.of_status(found, age_ms), timeline, now_ms), unreadable


class LiveMetrics:
    """Of one scheduler's process: its own view of now, beside what its files say of the past. Each method is called in a thread."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._timeline: Timeline | None = None
        self._run = 0
        self._most: dict[tuple[str, str], float] = {}
        """Counters of this run as they were told last: where a rank's newest record moves a bound by a part of a heartbeat, they wait."""

    def read(self, path: Path, generations: Iterable[GenerationRecord], run: int) -> None:
        """Read the past again: a second where the event log is long. Errors as of `timeline_of_files`."""
        self._timeline, _ = timeline_of_files(path, generations, run=run, draws=False)

    def text(self, run: int, figures: Mapping[str, Any], accept: str, now_ms: int) -> tuple[bytes, str]:
        """All metrics and their content type: milliseconds.

        Args:
            run: the newest.
            figures: as `recovery.core.scheduler.views.figures_view` gives them.
            accept: the header of that name.
            now_ms: by the wall clock.
        """
        timeline = self._timeline
        if timeline is not None and timeline.run != run:
            timeline = None
        if self._run != run:
            self._run, self._most = run, {}
        return text_of(Facts(Now(**figures), timeline, now_ms), accept, self._most)
