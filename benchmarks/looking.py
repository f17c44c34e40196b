"""How long do the inspecting commands take for a large job: 1,000 nodes, 100,000 events?

    python benchmarks/looking.py [--worker-files] [--tries 5] [--json]

Rows: command, median_s, worst_s, n. Each is a whole process, from its start to its end, output to a pipe. With `--worker-files` the
recovery path holds every worker's own file too, as on a shared directory; on a job's hosts each has only its own workers'.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = (
    ("--help",),
    *(
        (name, "PATH")
        for name in ("status", "nodes", "steps", "checkpoints", "generations", "events", "plan")
    ),
    ("timeline", "PATH"),
    ("timeline", "PATH", "--html", "FILE"),
    ("verify", "PATH"),
    ("export", "PATH", "FILE"),
)


def seconds(words: tuple[str, ...], path: Path, file: Path) -> float:
    """One run of the command; what it writes is removed first."""
    file.unlink(missing_ok=True)
    typed = [{"PATH": str(path), "FILE": str(file)}.get(word, word) for word in words]
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "recovery", *typed], stdout=subprocess.PIPE, check=False)
    return time.perf_counter() - begun


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--worker-files", action="store_true")
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "recovery")
        make = [sys.executable, "-m", "tests.report.long_job", str(path)]
        make += ["--worker-files"] if asked.worker_files else []
        subprocess.run(make, cwd=ROOT, check=True)
        for words in COMMANDS:
            times = [seconds(words, path, Path(place, "file")) for _ in range(asked.tries)]
            row = {
                "command": " ".join(words),
                "median_s": round(statistics.median(times), 2),
                "worst_s": round(max(times), 2),
                "n": len(times),
            }
            print(json.dumps(row) if asked.json else "  ".join(f"{value!s:<28}" for value in row.values()))


if __name__ == "__main__":
    main()
