"""MS_STEP_LOG: a JSON line per applied step, from which tests know what each process really did."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from recovery import clock

_FIELDS = ("generation", "incarnation", "rank", "step", "epoch", "step_in_epoch")


class StepLog:
    """The file of one entry of the training function; without a path it takes no lines."""

    def __init__(self, path: Path | None) -> None:
        """Open the file for appending; its directory is made if absent.

        Raises:
            OSError: it cannot be opened.
        """
        self._descriptor: int | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    @property
    def is_open(self) -> bool:
        """Whether anybody wants the lines."""
        return self._descriptor is not None

    def append(self, session: Any) -> None:
        """Write where a session stands, in one write, so that lines of several processes do not mix."""
        if self._descriptor is not None:
            fields = {name: getattr(session, name) for name in _FIELDS} | {"wall_ms": clock.wall_ms()}
            os.write(self._descriptor, json.dumps(fields).encode() + b"\n")

    def close(self) -> None:
        """Close the file; lines that come later are dropped."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
