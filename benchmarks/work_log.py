"""The lines by which a measured process tells its steps.

A line of steps.jsonl is an applied step (`rank`, `step`, `pid`, `wall_ms`) or a mark (`mark`, `rank`, `pid`, `wall_ms`): `entered`, the
imports are made; `world`, the rank's world is formed; `loaded`, its state and its first batch are there.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


def note(**fields: object) -> None:
    """Append one line to steps.jsonl in a single write, so that processes do not mix."""
    line = json.dumps({**fields, "wall_ms": time.time() * 1000}).encode() + b"\n"
    descriptor = os.open("steps.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, line)
    os.close(descriptor)


def stepped(rank: int, step: int) -> None:
    """The rank has applied a step."""
    note(rank=rank, step=step, pid=os.getpid())


def mark(name: str, rank: int | None = None) -> None:
    """The program has come to a point; `entered` also tells since when the process lives, to 10 ms."""
    lived = {"born_ms": born_ms()} if name == "entered" else {}
    note(mark=name, rank=rank, pid=os.getpid(), **lived)


def born_ms() -> float:
    """When this process was forked, wall ms: /proc counts from the start of the machine, in ticks."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return (time.time() - age_s) * 1000
