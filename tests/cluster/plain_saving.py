"""A script of people that knows nothing of recovery: asked to stop, it saves, and that takes longer than a shutdown usually does."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

SAVE_S = 7.0


def save(number: int, frame: object) -> None:
    time.sleep(SAVE_S)
    Path(f"saved_{os.environ['RANK']}").touch()
    sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, save)
    Path(f"ready_{os.environ['RANK']}").touch()
    while True:
        signal.pause()
