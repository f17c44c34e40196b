"""What is shown, as JSON."""

from __future__ import annotations

import json
from typing import Any

import msgspec


def in_one_line(value: Any) -> bytes:
    """A value as JSON. A byte of a path that is no text becomes a question mark: JSON holds text only."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), ensure_ascii=False).encode(errors="replace")
