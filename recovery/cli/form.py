"""How rows are written: apart from the writing, so that `--help` needs no tables."""

from __future__ import annotations

from enum import Enum


class Format(str, Enum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"
