"""Fuzzes one target guided by the branches that it reaches: `python -m tests.fuzz.guided TARGET SECONDS SEED FOUND`. Needs atheris.

What raises is written into the directory FOUND, and the exit code is not 0. `python -m tests.fuzz` starts one such process per target.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["recovery"]):
    from tests.fuzz.targets import TARGETS

_INPUT_BYTES_MAX = 16_384


def main() -> None:
    """Ends the process."""
    name, seconds, seed, found = sys.argv[1:]
    target = TARGETS[name]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        corpus, directory = Path(place, "corpus"), Path(place, "files")
        corpus.mkdir()
        directory.mkdir()
        for number, right in enumerate(target.seeds()):
            (corpus / str(number)).write_bytes(right)
        arguments = [
            sys.argv[0],
            f"-max_total_time={seconds}",
            f"-seed={seed}",
            f"-max_len={_INPUT_BYTES_MAX}",
            f"-artifact_prefix={found}/{name}-",
            "-verbosity=0",
            "-print_final_stats=1",
            str(corpus),
        ]
        atheris.Setup(arguments, target.taker(directory))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
