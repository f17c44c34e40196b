"""Buffers of rank 0 that every rank keeps: those that training changes in a model in DistributedDataParallel.

Rank 0 sends them before the first optimizer step of every step: a rank that completes that step then has them. An average of a model
(AveragedModel) is changed behind the optimizer's step; its buffers follow at the boundary.

Which change, and when, is voted on at the first boundary behind an optimizer's step. Where one begins to change later (a model that is
trained from some epoch on), rank 0 says so with what it sends, and all vote once more in the next step. A generation that goes on
with a rank's memory takes the result from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import distributed

from recovery.torch.buffer_changes import BufferChanges, Seen, alike, differ
from recovery.torch.live_transfer import wire_device

_EARLY, _LATE = "before the optimizer", "at the boundary"
"""When a buffer is sent."""

_ASKED_EVERY = 16
"""Boundaries."""

_LOOKED_AT = 8
"""So many buffers are compared at a boundary: a vote may come some steps later, and a step must cost next to nothing."""

_ALIGNED_BYTES = 16
"""Enough for every dtype."""

_NOT_AGREED = "and had not in the first steps: the ranks have not agreed on it yet"


class MirroredBuffers:
    """Of one generation."""

    def __init__(self, changes: BufferChanges, *, known: Mapping[str, Sequence[str]]) -> None:
        """Nothing was sent yet.

        `known` is the `layout` of the generation whose state this one goes on with, the same on all ranks; empty: it is voted on.
        """
        self._changes, self._buffers = changes, changes.buffers
        self._mirrored = [False] * len(self._buffers)
        self._early: Mirror | None = None
        self._late: Mirror | None = None
        self._known_late: set[int] = set()
        self._settled = False
        self._sent, self._early_sent, self._has_turned = False, False, False
        self._at_hook: list[Seen] | None = None
        self._hook_copies: list[torch.Tensor | None] | None = None
        self._watched: dict[int, torch.Tensor] = {}
        self._called_back = self._moved_late = ""
        self._may_ask = any(changes.counts_of_rank_0(number) for number in range(len(self._buffers)))
        self._boundaries = self._looked_at = 0
        self._asks = False
        """This is rank 0, which has seen a change that was not voted on."""
        self._asked = False
        """Rank 0 has asked all ranks for a vote."""
        if known:
            names = [buffer.name for buffer in self._buffers]
            self._known_late = {number for number, name in enumerate(names) if name in known[_LATE]}
            self._settle(*([name in known[when] for name in names] for when in (_EARLY, _LATE)))

    def __contains__(self, number: int) -> bool:
        """Is this buffer sent by rank 0?"""
        return self._mirrored[number]

    def layout(self) -> dict[str, list[str]]:
        """Names of the buffers that rank 0 sends, by when; empty where that is not settled."""
        if not self._settled:
            return {}
        return {
            when: [self._buffers[number].name for number in (mirror.numbers if mirror is not None else ())]
            for when, mirror in ((_EARLY, self._early), (_LATE, self._late))
        }

    def why_not(self) -> str:
        """Why what is kept is not what rank 0 has, one clause; empty: it is."""
        return self._called_back or self._moved_late

    # --- a step --------------------------------------------------------------------------------------------------------

    def before_step(self) -> None:
        """An optimizer is about to begin its first step behind a boundary. A collective."""
        if not self._settled:
            self._hook_copies = self._changes.copies()
        elif self._early is not None:
            self._send(self._early)
            self._early_sent = True
        self._at_hook = self._changes.now()

    def before_boundary(self) -> None:
        """The first half of a boundary, a collective: what is left to send. It changes nothing that is kept, so that it may fail."""
        if not self._settled:
            self._vote()
        if self._early is not None and not self._early_sent:
            self._send(self._early)
        if self._late is not None:
            self._send(self._late)
        self._boundaries += 1
        if self._early is None and self._late is None and self._may_ask and _is_asked_at(self._boundaries):
            self._send(Mirror([], []))
        self._sent = True

    def boundary(self, now: list[Seen], kept: list[torch.Tensor]) -> None:
        """The second half: what was sent is kept, in the place of what was. Without a first half: as callbacks have left the buffers."""
        if self._sent:
            self._turn(now, kept)
        elif self._has_turned:
            self._look_behind_callbacks(now, kept)
        else:
            self._keep(now, kept, range(len(now)))
        self._sent, self._early_sent, self._at_hook, self._hook_copies = False, False, None, None
        if self._asked:
            self._settled, self._asked, self._asks = False, False, False
        elif self._settled and not self._asks and distributed.get_rank() == 0:
            self._asks = self._finds_a_change(now)

    def _send(self, mirror: Mirror) -> None:
        self._asked |= mirror.send(self._changes.tensors(), asks=self._asks)

    def _turn(self, now: list[Seen], kept: list[torch.Tensor]) -> None:
        self._has_turned, self._called_back, self._watched = True, "", {}
        for mirror in (self._early, self._late):
            if mirror is not None:
                mirror.turn(kept)
        if self._early_sent and self._early is not None and self._at_hook is not None:
            moved = [number for number in self._early.numbers if differ(self._at_hook[number], now[number])]
            self._known_late.update(moved)
            if moved:
                self._moved_late = f"buffer {self._buffers[moved[0]].name} has changed behind an optimizer's step, {_NOT_AGREED}"

    # --- callbacks -----------------------------------------------------------------------------------------------------

    def before_callbacks(self) -> None:
        """Callbacks follow, behind a boundary, that may change buffers."""
        tensors = self._changes.tensors()
        self._watched = {
            number: tensors[number].clone() for number, is_in in enumerate(self._mirrored) if is_in
        }

    def _look_behind_callbacks(self, now: list[Seen], kept: list[torch.Tensor]) -> None:
        changed = [
            number for number, before in self._watched.items() if not alike(before, now[number].tensor)
        ]
        if changed and distributed.get_rank() == 0:
            self._keep(now, kept, changed)
        elif changed:
            name = self._buffers[changed[0]].name
            self._called_back = f"a callback has changed buffer {name}, and what rank 0 has of it is not known here before the next boundary"

    def _keep(self, now: list[Seen], kept: list[torch.Tensor], numbers: Iterable[int]) -> None:
        for number in numbers:
            if self._mirrored[number]:
                kept[number] = now[number].tensor.detach().clone()

    # --- votes ---------------------------------------------------------------------------------------------------------

    def _vote(self) -> None:
        """A buffer changes if any rank has seen it change. It is settled behind the first optimizer step."""
        now = self._changes.now()
        changed = [
            self._mirrored[number] or self._changes.since_begin(number, seen.tensor, seen)
            for number, seen in enumerate(now)
        ]
        late = [number in self._known_late or self._is_late(number, seen) for number, seen in enumerate(now)]
        stepped = [self._at_hook is not None] * len(now)
        votes = torch.tensor([changed, late, stepped], dtype=torch.uint8, device=wire_device())
        distributed.all_reduce(votes, distributed.ReduceOp.MAX)
        changed, late, stepped = ([bool(vote) for vote in row] for row in votes.tolist())
        floating = [is_in and self._changes.counts_of_rank_0(number) for number, is_in in enumerate(changed)]
        # Counters that change behind the optimizer's step need not be sent: every rank counts alike.
        goes_late = [is_late and is_floating for is_late, is_floating in zip(late, floating, strict=True)]
        goes_early = [
            any(floating) and changed[number] and buffer.alike and not late[number]
            for number, buffer in enumerate(self._buffers)
        ]
        self._known_late.update(number for number, is_late in enumerate(late) if is_late)
        self._moved_late = ""
        self._settle(goes_early, goes_late)
        self._settled = all(stepped)

    def _settle(self, goes_early: list[bool], goes_late: list[bool]) -> None:
        self._mirrored = [early or late for early, late in zip(goes_early, goes_late, strict=True)]
        self._early, self._late = self._mirror_of(goes_early), self._mirror_of(goes_late)
        self._settled = True

    def _mirror_of(self, which: list[bool]) -> Mirror | None:
        numbers = [number for number, is_in in enumerate(which) if is_in]
        return Mirror(numbers, [self._buffers[number].tensor for number in numbers]) if numbers else None

    def _is_late(self, number: int, now: Seen) -> bool:
        """Has it changed behind the first optimizer step?"""
        if self._at_hook is None or self._hook_copies is None:
            return False
        copy = self._hook_copies[number]
        return differ(self._at_hook[number], now) if copy is None else not alike(copy, now.tensor)

    def _finds_a_change(self, now: list[Seen]) -> bool:
        """Has one changed of those that are not sent? It looks at some, each time at the next ones."""
        if self._moved_late:
            return True
        count = len(now)
        numbers = [(self._looked_at + place) % count for place in range(min(count, _LOOKED_AT))]
        self._looked_at = (numbers[-1] + 1) % count
        return any(
            self._changes.since_begin(number, now[number].tensor, now[number])
            for number in numbers
            if not self._mirrored[number] and self._changes.counts_of_rank_0(number)
        )


def _is_asked_at(boundary: int) -> bool:
    """Where nothing is sent with which rank 0 could ask: may it now? Soon behind the begin, and then now and then."""
    return boundary % _ASKED_EVERY == 0 or boundary.bit_count() == 1


class Mirror:
    """Rank 0's values of some buffers, by number, twice: those of the last boundary, and those of the step that is under way."""

    def __init__(self, numbers: list[int], tensors: Sequence[torch.Tensor]) -> None:
        """Make room for tensors like these."""
        self.numbers = numbers
        self._pending, self._kept = _Flat(tensors), _Flat(tensors)

    def send(self, buffers: Sequence[torch.Tensor], *, asks: bool) -> bool:
        """A collective: rank 0's go to all, and whether it asks for a vote, which is given back. What is kept stays as it is.

        `buffers` are all of this rank's; `asks` is read on rank 0 alone.
        """
        if distributed.get_rank() == 0:
            pairs = list(zip(self._pending.views, (buffers[number] for number in self.numbers), strict=True))
            # One that has grown since has no place here: `KeptBuffers.why_not` says so.
            if fitting := [(view, buffer) for view, buffer in pairs if view.shape == buffer.shape]:
                torch._foreach_copy_([view for view, _ in fitting], [buffer for _, buffer in fitting])
            self._pending.bytes[-1] = asks
        distributed.broadcast(self._pending.bytes, 0)
        return bool(self._pending.bytes[-1])

    def turn(self, kept: list[torch.Tensor]) -> None:
        """What was sent last is kept."""
        self._pending, self._kept = self._kept, self._pending
        for number, view in zip(self.numbers, self._kept.views, strict=True):
            kept[number] = view


class _Flat:
    """Tensors one behind the other in memory, and a byte, so that they go out as one."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        sizes = [-(-tensor.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES for tensor in tensors]
        self.bytes = torch.zeros(sum(sizes) + 1, dtype=torch.uint8, device=wire_device())
        self.views = [
            part[: tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)
            for tensor, part in zip(tensors, torch.split(self.bytes[:-1], sizes), strict=True)
        ]
