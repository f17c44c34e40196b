"""A new file that a command is asked for: whole, or not there."""

from __future__ import annotations

from pathlib import Path


def write_new(path: Path, content: bytes) -> None:
    """Make a file. One that cannot be written whole is not left behind.

    Raises:
        FileExistsError: there is one already; it stays as it is.
        OSError: it cannot be written.
    """
    with path.open("xb") as stream:
        try:
            stream.write(content)
            stream.flush()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
