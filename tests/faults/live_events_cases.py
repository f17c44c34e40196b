"""Which strikes a live job goes through: every event of a step, and of the recovery that follows a first one, for each rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from typing_extensions import override

from tests.faults.live_expected import Note
from tests.faults.live_strikes import HOLD, SAVE_STEPS, Strike

STEP, RECOVERY, APART = "step", "recovery", "apart"
KINDS = (STEP, RECOVERY, APART)
STRIKES_OF_A_JOB = 6
_MIDDLE = 3
"""Behind a saved step: no save is near."""
_IN_RECOVERY = ("entered", "world formed", "transfer begins", "piece 1", "piece 2", "piece 3", "piece 4", "piece 5", "transfer ends",
    "agreement begins", "agreement ends", "load begins", "load ends",
    "forward begins", "bucket 0", "optimizer 0 begins", "mirror begins", "mirror ends", "optimizer 0 steps", "boundary ends")  # fmt: skip
"""Of a generation whose state comes from a rank's memory, up to its first boundary."""


class Case(NamedTuple):
    """One job."""

    strikes: tuple[Strike, ...]

    @override
    def __str__(self) -> str:
        return ", ".join(str(strike) for strike in self.strikes)


def of(undisturbed: Iterable[Note], ranks: Sequence[int], workers: int, kinds: Sequence[str]) -> list[Case]:
    """All of these kinds.

    Args:
        undisturbed: what a job notes to which nothing happens.
        ranks: who is killed.
        workers: how many there are.
        kinds: of KINDS.
    """
    found: list[Case] = []
    undisturbed = [*undisturbed]
    without = "" if any(note.event.startswith("mirror") for note in undisturbed) else "mirror"
    if STEP in kinds:
        found += _in_steps(undisturbed, ranks)
    if RECOVERY in kinds:
        found += _in_recoveries(ranks, workers, without)
    if APART in kinds:
        found += _apart(ranks, workers)
    return found


def events_of_a_step(undisturbed: Iterable[Note]) -> list[str]:
    """All of a step behind which is saved, in their order."""
    noted = [note for note in undisturbed if note.rank == 0 and note.step == SAVE_STEPS * 2]
    return [*dict.fromkeys(note.event for note in noted)]


def _in_steps(undisturbed: list[Note], ranks: Sequence[int]) -> list[Case]:
    singles = [(event, rank) for event in events_of_a_step(undisturbed) for rank in ranks]
    found = []
    for first in range(0, len(singles), STRIKES_OF_A_JOB):
        strikes = [
            _at(event, rank, number)
            for number, (event, rank) in enumerate(singles[first : first + STRIKES_OF_A_JOB])
        ]
        found.append(Case(tuple(strikes)))
    return found


def _at(event: str, rank: int, number: int) -> Strike:
    """The so-many-th strike of a job."""
    # Where a generation saves follows from where it has begun.
    step = 0 if event.startswith("save") else SAVE_STEPS * number + _MIDDLE
    return Strike(rank, event, step, follows=number > 0)


def _in_recoveries(ranks: Sequence[int], workers: int, without: str) -> list[Case]:
    """First one dies in its backward pass; then, in the recovery, the one that gives, or one that takes, or one that has it already.

    Events whose name begins with `without` are left out, if that is not empty: nothing is sent by such jobs.
    """
    found = []
    for first in (workers - 1, 0):
        events = [event for event in _IN_RECOVERY if not without or not event.startswith(without)]
        pairs = [(event, rank) for event in events for rank in ranks]
        each = STRIKES_OF_A_JOB // 2
        for begin in range(0, len(pairs), each):
            strikes: list[Strike] = []
            for number, (event, rank) in enumerate(pairs[begin : begin + each]):
                # None of these follows a step that is saved: its file would be as new as the memory of a survivor.
                step = 2 * SAVE_STEPS * number + _MIDDLE
                strikes.append(Strike(first, "backward begins", step, follows=number > 0))
                strikes.append(Strike(rank, event, follows=True))
            found.append(Case(tuple(strikes)))
    return found


def _apart(ranks: Sequence[int], workers: int) -> list[Case]:
    """One is torn, or a step behind, when another dies; then somebody dies in the recovery."""
    found = []
    for held in ("optimizer 0 steps", "optimizer 1 ends", "boundary begins"):
        for slow in ranks:
            dead = (slow + 1) % workers
            for event in ("transfer begins", "piece 2", "piece 4", "agreement begins", "optimizer 0 begins"):
                for second in range(workers):
                    step = SAVE_STEPS + _MIDDLE
                    found.append(
                        Case(
                            (
                                Strike(slow, held, step, HOLD),
                                Strike(dead, "forward begins", step + 1),
                                Strike(second, event, follows=True),
                            )
                        )
                    )
    return found
