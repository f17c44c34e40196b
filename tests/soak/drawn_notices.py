"""The jobs of the soak of notices, and what is drawn for each: whom a notice comes to, by what, in which moment."""

from __future__ import annotations

import random
from typing import NamedTuple

from typing_extensions import override

from tests.soak.script_faces import Form, drawn
from tests.soak.scripts import STEP_MS

FACES_HERE = ("plain", "three_lines")
SOURCES = ("launcher", "launcher", "worker", "worker", "file", "file, seconds", "file, time", "metadata")
MOMENTS = ("step",) * 4 + ("load", "evaluate", "save", "save", "recovery", "recovery")
_STARTS_AT_A_NOTICE = 0.5
_IS_TOO_NEAR = 0.08


class Shape(NamedTuple):
    """One job."""

    form: Form
    hosts: int
    standbys: str
    """Where they are: `none`, `first`, `all`."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.form.name}, hosts: {self.hosts}, standbys: {self.standbys}"


class Notice(NamedTuple):
    """One host, or one process, is to leave."""

    source: str
    host: int
    rank: int
    """Of the process, where it comes to one."""
    moment: str
    steps: int
    """Behind so many further ones."""
    into_ms: int
    is_near: bool
    """There is no time left for a save."""

    @override
    def __str__(self) -> str:
        whom = f"rank {self.rank}" if self.source == "worker" else f"host {self.host}"
        return (
            f"{self.source} of {whom}, {self.into_ms} ms into {self.moment}, {self.steps} steps on"
            + ", too near" * self.is_near
        )


def drawn_shape(face: str, draw: random.Random) -> Shape:
    """A job: two to four ranks."""
    hosts = draw.choice((1, 2, 2, 2, 3))
    workers = {1: 2, 2: draw.choice((2, 2, 4)), 3: 3}[hosts]
    form = drawn(face, draw)._replace(workers=workers)
    return Shape(form, hosts, draw.choice(("none", "none", "first", "all")))


def drawn_notices(draw: random.Random, shape: Shape, count: int) -> list[Notice]:
    """What comes to a job."""
    found = []
    for number in range(count):
        first = number == 0 and draw.random() < _STARTS_AT_A_NOTICE
        moment = "start" if first else draw.choice(MOMENTS)
        if moment == "recovery" and not number:
            moment = "step"
        long = {"start": 12_000, "recovery": 6_000, "step": 2 * STEP_MS}.get(moment, 20)
        source = draw.choice(SOURCES)
        by_time = source.startswith(("file, ", "metadata"))
        is_near = by_time and draw.random() < _IS_TOO_NEAR
        host, rank = draw.randrange(shape.hosts), draw.randrange(shape.form.workers)
        found.append(Notice(source, host, rank, moment, draw.randint(1, 9), draw.randint(0, long), is_near))
    return found
