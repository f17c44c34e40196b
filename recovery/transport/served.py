"""What a file server gives. Without aiohttp's server, which only a process that serves imports."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Served(NamedTuple):
    """One contribution as it lies on this node's disk."""

    manifest: bytes
    """As it stands beside the files."""
    files: tuple[Path, ...]
    """In the manifest's order."""
