"""A run of jobs one after another: its options, a line of JSON for each job and for the sums, where what failed is kept, its exit code."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def options(name: str, what: str | None) -> argparse.ArgumentParser:
    """Of every run; `what` it does is its help."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.soak.{name}", description=what)
    parser.add_argument("--seed", type=int, default=1, help="of the first job, then one more each (1)")
    parser.add_argument("--keep", type=Path, help="a new directory for what failed (one below /tmp)")
    return parser


class Run:
    """One from the command line."""

    def __init__(self, name: str, asked: argparse.Namespace) -> None:
        """Make its place.

        Args:
            name: of its module.
            asked: with `options`.
        """
        self._is_kept = asked.keep is not None
        self.place: Path = asked.keep or Path(tempfile.mkdtemp(prefix=f"{name}-"))
        self.place.mkdir(exist_ok=True)
        self.failed = 0
        self._began_s = self._told_s = time.monotonic()

    @property
    def minutes(self) -> float:
        """How long it has gone on."""
        return (time.monotonic() - self._began_s) / 60

    def tell(
        self, line: Mapping[str, Any], fault: str, *, kept: str = "", again: str = "", **last: Any
    ) -> None:
        """A job is over.

        Args:
            line: what is told of it.
            fault: empty: none.
            kept: where, in the place, is what a job that failed has left.
            again: the command for this job alone.
            last: what comes behind all other.
        """
        found, took_s = {}, time.monotonic() - self._told_s
        if fault:
            self.failed += 1
            found = {"failed": fault, "kept_in": str(self.place / kept)} | ({"again": again} if again else {})
        print(json.dumps({**line, **found, "took_s": round(took_s, 1), **last}), flush=True)
        self._told_s = time.monotonic()

    def end(self, *sums: Mapping[str, Any], is_good: bool = True) -> int:
        """All are over. Gives the exit code: 1 where a job failed.

        Args:
            sums: each is a line.
            is_good: False: it has failed as a whole.
        """
        for line in sums:
            print(json.dumps(line))
        is_good = is_good and not self.failed
        if is_good and not self._is_kept:
            shutil.rmtree(self.place)
        return int(not is_good)
