"""Gradients that are there at a step's end: what they were at the last boundary (live rollback).

A loop that clears its gradients at the next step's begin leaves them there at every boundary, and gets new tensors from the next backward
pass. Then it is enough to hold the old ones. A loop that adds to them, or sets them to zero, changes them in place: they are copied.
Which of both a loop does is seen in its first steps.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from recovery.torch import spread

_WATCHED_STEPS = 8
"""Boundaries of a generation at which it is found out what the loop does. Meanwhile gradients are held and copied."""
_STEPS_IN_A_ROW = 3
"""Behind so many steps that left the last step's gradients as they were, the next ones are only held."""


class KeptGradients:
    """Those of the last boundary."""

    def __init__(self) -> None:
        """There are none."""
        self._held: dict[str, torch.Tensor] = {}
        self._versions: list[int] = []
        self._places: set[int] = set()
        """Where the held ones lie in memory."""
        self._copies: dict[str, torch.Tensor] = {}
        self._only_held = False
        self._watched, self._in_a_row = 0, 0

    def boundary(self, found: dict[str, torch.Tensor]) -> None:
        """These are there now, by the name of their parameter."""
        if not found and not self._held and not self._copies:
            return
        if self._only_held and self._left_alone(found):
            self._held, self._versions = found, _versions(found)
            return
        places = _places(found)
        self._judge(found, places)
        if self._only_held or self._watched < _WATCHED_STEPS:
            self._held, self._versions, self._places = found, _versions(found), places
        else:
            self._held, self._versions, self._places = {}, [], set()
        if self._only_held:
            self._copies = {}
        else:
            self._copy(found)

    def tensors(self) -> dict[str, torch.Tensor]:
        """They themselves, or their copies."""
        return self._held if self._only_held else self._copies

    def why_not(self) -> str:
        """Why they are not what they were at the last boundary, one clause; empty: they are."""
        if self._only_held and _versions(self._held) != self._versions:
            return "gradients were changed in place, which the first steps of this generation did not do"
        return ""

    def _judge(self, found: Mapping[str, torch.Tensor], places: set[int]) -> None:
        """Did the step that ends now leave those of the last one as they were, and make new ones?"""
        # In memory of their own: what is done to `.data`, or in a bucket (gradient_as_bucket_view), is counted in no version.
        left_alone = _versions(self._held) == self._versions and self._places.isdisjoint(places)
        if self._only_held:
            self._only_held, self._watched = False, _WATCHED_STEPS
        elif found and self._watched < _WATCHED_STEPS:
            self._watched += 1
            self._in_a_row = self._in_a_row + 1 if self._held and left_alone else 0
            self._only_held = self._in_a_row >= _STEPS_IN_A_ROW

    def _left_alone(self, found: Mapping[str, torch.Tensor]) -> bool:
        """As `_judge` asks, at every step of a loop that always did.

        What is held lies in memory of its own, so each new one is compared with its own predecessor. Where all are the same as before, this is
        another look at the same boundary.
        """
        held = self._held
        if _versions(held) != self._versions:
            return False
        pairs = [(gradient, held.get(name)) for name, gradient in found.items()]
        if len(held) == len(pairs) and all(gradient is before for gradient, before in pairs):
            return True
        return all(
            gradient.layout is torch.strided and (before is None or _place(gradient) != _place(before))
            for gradient, before in pairs
        )

    def _copy(self, found: Mapping[str, torch.Tensor]) -> None:
        old, new, before = [], [], self._copies
        self._copies = {}
        for name, found_one in found.items():
            gradient = spread.local(found_one)
            kept = before.get(name)
            if kept is not None and kept.layout == gradient.layout == torch.strided:
                old.append(kept)
                new.append(gradient)
            else:
                kept = gradient.clone()
            self._copies[name] = kept
        if old:
            torch._foreach_copy_(old, new)


def _versions(gradients: Mapping[str, torch.Tensor]) -> list[int]:
    return [_version(gradient) for gradient in gradients.values()]


def _version(gradient: torch.Tensor) -> int:
    version: int = gradient._version  # noqa: SLF001 - counts changes in place
    if type(gradient) is not torch.Tensor:
        # FSDP2 adds to this rank's part, which is counted there.
        version += spread.local(gradient)._version  # noqa: SLF001 - as above
    return version


def _places(gradients: Mapping[str, torch.Tensor]) -> set[int]:
    # Of what is sparse nobody knows: it has the place of all others like it, so it is copied, and cannot be sent.
    return {_place(gradient) if gradient.layout is torch.strided else 0 for gradient in gradients.values()}


def _place(gradient: torch.Tensor) -> int:
    if type(gradient) is not torch.Tensor:
        gradient = spread.local(gradient)
    return gradient.data_ptr()
