"""A file system of a test's own, of a size that it chooses."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.needs import lacks, needs_root, needs_tool


@contextmanager
def small_disk(place: Path, options: str) -> Iterator[Path]:
    """Mount a tmpfs there, as long as this lasts. Needs root.

    Args:
        place: a directory; it is made where it is not there.
        options: of mount, `size=64k` or `nr_inodes=8`.
    """
    needs_root()
    needs_tool("mount")
    place.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"mode=0700,{options}", "tmpfs", str(place)],
        check=False,
        capture_output=True,
        timeout=120,
    )
    if done.returncode != 0:
        lacks(f"the right to mount a tmpfs ({done.stderr.decode().strip()})", "give root CAP_SYS_ADMIN")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=120)
