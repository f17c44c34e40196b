"""What does a save cost training, and when is it durable? Ways in turn, in the same processes, of the same state.

    python benchmarks/checkpoint.py [--megabytes 50,1000] [--ranks 4] [--rounds 5] [--way NAME ...] [--json]

Every rank trains with steps of 10 ms and saves after ten of them; the next save begins when all ranks' last one is durable. Of each save the
stall (how long the step waits for the call) and the processor time of its thread in it, the time until it is durable (for torch.save without fsync
and DCP: as far as they go), the processor time beyond that of the steps, children included, and the bytes of all ranks are taken; medians over
ranks and rounds, the first round left out. Ways that do not fit into memory together are measured in several runs, each with the copy.

Rows: way, stall_ms, stall_cpu_ms, durable_ms, cpu_ms, step_ms (median of the steps behind it), stall_over_copy, stall_cpu_over_copy (says more
where the machine is busy), bytes, n, megabytes, ranks, load. The last row of a run is about restoring, into fresh memory: verified (digest and
TrainState.read), torch.load, and torch.load with both load_state_dict, each with its processor time, and the ratios of the first to the others.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import psutil
from checkpoint_ways import KEEPS, WAYS
from rows import Row

HERE = Path(__file__).resolve().parent
FLOOR = "copy into kept buffers"
LIMIT_S = 1_800
MEASURED = ("stall_ms", "stall_cpu_ms", "durable_ms", "cpu_ms", "step_ms")


def groups(ways: list[str], state_bytes: int) -> tuple[list[list[str]], list[str]]:
    """Divide the ways into runs that fit into memory, each with the copy; and those that fit into none.

    Args:
        ways: in their order.
        state_bytes: of all ranks together.
    """
    # A quarter is for what is written and for everything else.
    room = 0.75 * psutil.virtual_memory().available / state_bytes - 1 - KEEPS[FLOOR]
    found: list[list[str]] = []
    left_out = [way for way in ways if KEEPS.get(way, 0.0) > room]
    free = 0.0
    for way in ways:
        if way == FLOOR or way in left_out:
            continue
        if not found or KEEPS.get(way, 0.0) > free:
            found.append([FLOOR])
            free = room
        found[-1].append(way)
        free -= KEEPS.get(way, 0.0)
    return found or [[FLOOR]], left_out


def measure(megabytes: int, ranks: int, rounds: int, ways: list[str], place: str | None) -> list[Row]:
    """Some ways of one size, in the same processes."""
    with tempfile.TemporaryDirectory(dir=place) as directory:
        command = [sys.executable, str(HERE / "checkpoint_rank.py")]
        environment = {**os.environ, "PYTHONPATH": f"{HERE.parent}:{HERE}", "GLOO_SOCKET_IFNAME": "lo"}
        arguments = [str(ranks), str(megabytes * 1_000_000), str(rounds), directory, *ways]
        said = [(Path(directory) / f"said-{rank}").open("w+", encoding="utf-8") for rank in range(ranks)]
        running = [
            subprocess.Popen(
                [*command, str(rank), *arguments],
                stdout=subprocess.PIPE,
                stderr=said[rank],
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
        _stop_if_failed(running, said)
    return _rows(megabytes, ranks, ways, [json.loads(line) for text in printed for line in text.splitlines()])


def _stop_if_failed(running: list[subprocess.Popen[str]], said: Sequence[TextIO]) -> None:
    for rank, (process, file) in enumerate(zip(running, said, strict=True)):
        with file:
            if process.returncode:
                file.seek(0)
                sys.exit(f"rank {rank} has failed ({process.returncode}):\n{file.read()[-3_000:]}")


def _rows(megabytes: int, ranks: int, ways: list[str], lines: list[dict[str, Any]]) -> list[Row]:
    of_all: Row = {"megabytes": megabytes, "ranks": ranks, "load": round(os.getloadavg()[0], 1)}
    rows: list[Row] = []
    floor = _medians(lines, FLOOR)
    for way in ways:
        of_way = [line for line in lines if line.get("way") == way]
        middle = _medians(lines, way)
        rows.append(
            {
                "way": way,
                **middle,
                "stall_over_copy": round(middle["stall_ms"] / floor["stall_ms"], 2),
                "stall_cpu_over_copy": round(middle["stall_cpu_ms"] / floor["stall_cpu_ms"], 2),
                "bytes": round(sum(line["bytes"] for line in of_way) / (len(of_way) / ranks)),
                "n": len(of_way),
                **of_all,
            }
        )
    restores = [line for line in lines if "verified_ms" in line]
    middle = {
        key: round(statistics.median(line[key] for line in restores), 1)
        for key in restores[0]
        if key != "rank"
    }
    ratios = {
        f"{name}over_{other}": round(middle[f"verified_{name}ms"] / middle[f"{other}_{name}ms"], 2)
        for name in ("", "cpu_")
        for other in ("torch_load", "torch_load_applied")
    }
    return [*rows, {"way": "restore", **middle, **ratios, **of_all}]


def _medians(lines: list[dict[str, Any]], way: str) -> dict[str, float]:
    of_way = [line for line in lines if line.get("way") == way]
    return {key: round(statistics.median(line[key] for line in of_way), 1) for key in MEASURED}


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
        runs, left_out = groups(ways, size * 1_000_000 * asked.ranks)
        for way in left_out:
            _print({"way": way, "megabytes": size, "left_out": "there is too little memory"}, asked.json)
        for run in runs:
            for row in measure(size, asked.ranks, asked.rounds, run, asked.directory):
                _print(row, asked.json)


def _print(row: Row, as_json: bool) -> None:
    print(
        json.dumps(row) if as_json else "  ".join(f"{key}={value}" for key, value in row.items()), flush=True
    )


if __name__ == "__main__":
    main()
