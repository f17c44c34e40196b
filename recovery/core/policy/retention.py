"""Which checkpoints may go? MindSpore's two rules, and one above them: what a rollback could still need stays."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

_SECONDS_PER_MINUTE = 60


class Kept(msgspec.Struct, frozen=True):
    """A checkpoint that is there."""

    step: int
    saved_wall_s: float
    """When it was saved, seconds of the wall clock (its file's time): the processes of a node share no other clock."""


def removable(
    held: Sequence[Kept],
    *,
    previous_durable_step: int,
    keep_checkpoint_max: int,
    keep_checkpoint_per_n_minutes: int,
    spared: Collection[int] = (),
) -> tuple[int, ...]:
    """Name the steps that may be deleted now, oldest first.

    The two newest committed steps and everything newer always stay: the newest is where all ranks can go back to, the other one
    where they go when a file of it is damaged, what is newer may become that at any moment. So does what is spared: a rank that has
    lost its disk can go back to where others hold its copy, and everybody must go there with it.

    Args:
        held: one entry per step, in any order.
        previous_durable_step: newest step but one that every rank holds; 0: fewer than two are known, nothing goes.
        keep_checkpoint_max: how many to keep, the newest; 0: the other rule decides. It wins when both are given.
        keep_checkpoint_per_n_minutes: keep one per this many minutes, the first of each stretch; 0: no rule.
        spared: the newest step of which all copies are complete, and the one that is being copied.

    A wall clock set back keeps more for a while, never less: a step saved "before" the one ahead of it starts a new stretch.
    """
    ordered = sorted(held, key=lambda kept: kept.step)
    if keep_checkpoint_max:
        surplus = [kept.step for kept in ordered[:-keep_checkpoint_max]]
    elif keep_checkpoint_per_n_minutes:
        surplus = _within_a_stretch(ordered, stretch_s=keep_checkpoint_per_n_minutes * _SECONDS_PER_MINUTE)
    else:
        surplus = []
    return tuple(step for step in surplus if step < previous_durable_step and step not in spared)


def _within_a_stretch(ordered: Sequence[Kept], *, stretch_s: int) -> list[int]:
    """Steps saved less than `stretch_s` after the last one that stays."""
    surplus: list[int] = []
    stays: Kept | None = None
    for kept in ordered:
        if stays is not None and 0 <= kept.saved_wall_s - stays.saved_wall_s < stretch_s:
            surplus.append(kept.step)
        else:
            stays = kept
    return surplus
