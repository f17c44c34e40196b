"""The lines by which a measured process tells its steps."""

from __future__ import annotations

import json
import os
import time


def note(**fields: object) -> None:
    """Append one line to steps.jsonl in a single write, so that processes do not mix."""
    line = json.dumps({**fields, "wall_ms": time.time() * 1000}).encode() + b"\n"
    descriptor = os.open("steps.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, line)
    os.close(descriptor)
