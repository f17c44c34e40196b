"""What a stimulus has shown, until `settle` has drawn what follows from it. Between two stimuli nothing lies in `Facts`.

A failure may be one of several in a row: generations may break at the same step, one after the other, with nobody lost, and the next one would break
there again, and so on for ever. Ranks that do not take the same number of steps are the usual cause: one is done, and the others wait for it in a
collective until that gives up.
"""

from __future__ import annotations

from typing import NamedTuple

from recovery.core import messages as m
from recovery.core.causes import Cause
from recovery.core.effects import Persist
from recovery.core.scheduler.node import Node

SAME_ENDS_MAX = 4
"""How often in a row a data plane may break at the same step. What broke by bad luck comes through the first time."""
NETWORK_MS = 600_000
"""Where no step was made and no rank was done, the network may be away: how long it is waited for besides."""


class CrashLoop(NamedTuple):
    """How generations in a row have ended."""

    plan: int
    """The step that they began at."""
    step: int
    """The step at which the data plane broke, as the first rank said that reported it."""
    times: int
    first_ms: int
    """When the first of them ended."""
    by_program: bool
    """Has each of them made a step, or had a rank that was done? Then the network was there."""
    done: str
    """Which ranks were done when the last of them broke, and at which step; empty: none."""

    def is_hopeless(self, now_ms: int) -> bool:
        """Would the next generation end as these did?"""
        if self.times < SAME_ENDS_MAX:
            return False
        return self.by_program or now_ms - self.first_ms >= NETWORK_MS

    @property
    def sentence(self) -> str:
        """For the event log."""
        done = f" while {self.done} waited behind the end" if self.done else ""
        return f"{self.times} generations in a row, from step {self.plan}, have broken at step {self.step}{done}, and no process was lost"


def crash_loop_after(
    before: CrashLoop | None, *, plan: int, is_live: bool, step: int, done: str, now_ms: int
) -> CrashLoop:
    """One more generation has ended, which began at `plan` and broke at `step`. `before`: how those before it ended; None: otherwise, or none has.

    One that began in a rank's memory, `is_live`, went on from where they broke: it belongs to them, and so does the next from their checkpoint.
    """
    by_program = step > plan or bool(done)
    if before is None or before.step != step or not (is_live or before.plan == plan):
        return CrashLoop(plan, step, 1, now_ms, by_program, done)
    return before._replace(times=before.times + 1, by_program=before.by_program and by_program, done=done)


class Failure(NamedTuple):
    """Why the current generation cannot go on."""

    reason: str
    crash_loop: CrashLoop | None = None
    """The data plane broke, and nobody knows yet why: how generations in a row have ended. None: the cause is known."""
    then: tuple[Persist, ...] = ()
    """What may be written only behind the generation's end."""
    cause: Cause = Cause.OTHER
    about: str = ""
    """The node whose loss it is; empty: of none."""


class Arrival(NamedTuple):
    """A node has connected, and is to be brought to where the job stands."""

    node: Node
    register: m.Register


class Report(NamedTuple):
    """A node can follow a plan, and says what it holds."""

    node: Node
    ready: m.Ready


class GivenUp(NamedTuple):
    """A node is not started again."""

    node: Node
    reason: str


class Facts:
    """Handlers add, `settle` takes."""

    def __init__(self) -> None:
        """Nothing has happened."""
        self.failures: list[Failure] = []
        self.arrivals: list[Arrival] = []
        self.reports: list[Report] = []
        self.given_up: list[GivenUp] = []

    def fail(
        self,
        reason: str,
        *,
        crash_loop: CrashLoop | None = None,
        then: tuple[Persist, ...] = (),
        cause: Cause = Cause.OTHER,
        about: str = "",
    ) -> None:
        """The current generation cannot go on. Outside a generation it is one more failure of the last one, or nothing."""
        self.failures.append(Failure(reason, crash_loop, then, cause, about))

    @property
    def pending(self) -> bool:
        """Has nobody drawn what follows from something here?"""
        return bool(self.failures or self.arrivals or self.reports or self.given_up)
