"""What does a save cost training, and when is it durable? Ways in turn, in the same processes, of the same state.

    python benchmarks/checkpoint.py [--megabytes 50,1000] [--ranks 4] [--rounds 5] [--way NAME ...] [--json]

Every rank trains with steps of 10 ms and saves after ten of them; the next save begins when all ranks' last one is durable. Of each save the
stall (how long the step waits for the call), the time until it is durable (for torch.save without fsync and DCP: as far as they go), the
processor time beyond that of the steps, children included, and the bytes of all ranks are taken; medians over ranks and rounds, the first
round left out. Rows: megabytes, ranks, way, stall_ms, stall_over_copy, durable_ms, cpu_ms, step_ms (median of the steps behind it), bytes, n,
load. The last row of a size is about restoring: verified_ms, torch_load_ms, ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from checkpoint_ways import WAYS
from rows import Row

HERE = Path(__file__).resolve().parent
FLOOR = "copy into kept buffers"
LIMIT_S = 1_800


def measure(megabytes: int, ranks: int, rounds: int, ways: list[str], place: str | None) -> list[Row]:
    """All ways of one size."""
    with tempfile.TemporaryDirectory(dir=place) as directory:
        command = [sys.executable, str(HERE / "checkpoint_rank.py")]
        environment = {**os.environ, "PYTHONPATH": f"{HERE.parent}:{HERE}", "GLOO_SOCKET_IFNAME": "lo"}
        running = [
            subprocess.Popen(
                [*command, str(rank), str(ranks), str(megabytes * 1_000_000), str(rounds), directory, *ways],
                stdout=subprocess.PIPE,
                env=environment,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            printed = [process.communicate(timeout=LIMIT_S)[0] for process in running]
        finally:
            for process in running:
                process.kill()
    if any(process.returncode for process in running):
        sys.exit(f"a rank has failed: {[process.returncode for process in running]}")
    lines = [json.loads(line) for text in printed for line in text.splitlines()]
    return _rows(megabytes, ranks, ways, lines)


def _rows(megabytes: int, ranks: int, ways: list[str], lines: list[dict[str, Any]]) -> list[Row]:
    load = round(os.getloadavg()[0], 1)
    rows: list[Row] = []
    floor: float | None = None
    for way in ways:
        of_way = [line for line in lines if line.get("way") == way]
        medians = {
            key: round(statistics.median(line[key] for line in of_way), 1)
            for key in ("stall_ms", "durable_ms", "cpu_ms", "step_ms")
        }
        floor = medians["stall_ms"] if way == FLOOR else floor
        rows.append(
            {
                "megabytes": megabytes,
                "ranks": ranks,
                "way": way,
                **medians,
                "stall_over_copy": round(medians["stall_ms"] / floor, 2) if floor else None,
                "bytes": round(sum(line["bytes"] for line in of_way) / (len(of_way) / ranks)),
                "n": len(of_way),
                "load": load,
            }
        )
    restores = [line for line in lines if "verified_ms" in line]
    verified, plain, applied = (
        round(statistics.median(line[key] for line in restores), 1)
        for key in ("verified_ms", "torch_load_ms", "torch_load_applied_ms")
    )
    return [
        *rows,
        {
            "megabytes": megabytes,
            "ranks": ranks,
            "way": "restore",
            "verified_ms": verified,
            "torch_load_ms": plain,
            "torch_load_applied_ms": applied,
            "ratio": round(verified / plain, 2),
            "load": load,
        },
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", default="50,1000", help="sizes of the state of a rank, by comma")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5, help="saves of each way that count")
    parser.add_argument("--way", action="append", help="part of a way's name; all when it is not given")
    parser.add_argument(
        "--directory", help="where to save; the system's temporary directory when it is not given"
    )
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    asked = parser.parse_args()
    ways = [
        name for name in WAYS if not asked.way or name == FLOOR or any(part in name for part in asked.way)
    ]
    for size in map(int, asked.megabytes.split(",")):
        for row in measure(size, asked.ranks, asked.rounds, ways, asked.directory):
            print(
                json.dumps(row) if asked.json else "  ".join(f"{key}={value}" for key, value in row.items()),
                flush=True,
            )


if __name__ == "__main__":
    main()
