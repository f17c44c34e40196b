"""A plan in lines, for the terminal and for the live page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from recovery.report.plan import Plan, RankFile


class Line(NamedTuple):
    """One sentence."""

    text: str
    marked: str = ""
    """Its end, in a style of its own."""
    style: str = ""
    """Of `marked`, or of all where that is empty: a word of rich."""
    is_whole: bool = False
    """It has a path, which is not broken over lines."""


def lines_of(found: Plan, *, run: int, newest_step: Callable[[], int]) -> Iterator[Line]:
    """Say what a restart would do.

    Args:
        found: the plan.
        run: the job's newest.
        newest_step: the highest that a rank is known to have applied.
    """
    actions = {
        "resume": f"go on at step {found.step} (epoch {found.epoch}, step {found.step_in_epoch} in it)",
        "start": "start at step 0 with newly initialised weights",
        "new_run": f"begin run {run + 1} at step 0",
        "fail": "end the job: NO_COMMON_CHECKPOINT",
    }
    yield Line("a restart now would ", actions[found.action], "bold")
    yield Line(f"why: {found.reason}")
    for guess in found.guesses:
        yield Line(f"not known: {guess}", style="yellow")
    if found.steps_lost:
        yield Line(f"steps to do again: {found.steps_lost} (the newest was {newest_step()})")
    yield from map(_file, found.files)
    for file in found.stepped_back:
        yield Line(f"  not usable: rank {file.rank}: {file.why_not}", style="red", is_whole=True)
    for standby in found.standbys:
        rank = standby["takes_rank"]
        does = "stands by" if rank is None else f"is asked first to take rank {rank}"
        yield Line(f"  {standby['node_id']} {does}")
    for refused in found.refused:
        taken = refused["rank_taken_by"]
        else_why = f", and nobody waits for it: {taken} has its rank" if taken else ""
        yield Line(f"  {refused['node_id']} is refused for {refused['rejoin_left_s']:g} s more{else_why}")


def _file(file: RankFile) -> Line:
    marked, style = ("verified", "green") if file.verified else (f"not verified: {file.why_not}", "yellow")
    return Line(
        f"  rank {file.rank} ({file.node_id})  {file.path}  ({file.tier})  ", marked, style, is_whole=True
    )
