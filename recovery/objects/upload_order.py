"""Which step is sent next: all ranks send the same ones, however fast each of them is, and none while an older one is under way.

A turn is one object, created by the first rank that has a step to send; the others send that step as well. It is over when its step is
committed, or when a rank has passed: it does not hold the step any more. Only then comes the next turn, so none of them waits for ever.
Turns are counted from 0 in each generation, in which all ranks begin together.
"""

from __future__ import annotations

import re

import msgspec

from recovery.core.message_fields import Count
from recovery.errors import CheckpointManifestError
from recovery.objects import commits
from recovery.objects.commits import At
from recovery.objects.store import ObjectStore

_NAME = re.compile(r"([0-9]{12})-([0-9]{12})\.json")


class Turn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all ranks send."""

    generation: Count
    number: Count
    step: Count


_turn = msgspec.json.Decoder(Turn)


class UploadOrder:
    """The turns of one generation, as one rank follows them. Blocks."""

    def __init__(self, store: ObjectStore, job: str, run: int, generation: int) -> None:
        """Nothing is asked before `current`."""
        self._store, self._job, self._run, self._generation = store, job, run, generation
        self._base = commits.base_of(job, run)
        self._number = 0

    def current(self, newest: int) -> At | None:
        """Find the step that is to be sent now.

        Args:
            newest: the newest committed step that this rank holds: it is sent when nobody was here before.

        Returns:
            The step; None: the newest has had its turn, nothing is left to be sent.

        Raises:
            CheckpointError: the storage did not take or give something.
        """
        self._number = max(self._number, self._listed())
        while True:
            at = self._take(newest)
            if not self._is_over(at):
                return at
            if at.step >= newest:
                return None
            self._number += 1

    def pass_on(self) -> None:
        """This rank cannot send what is current: its turn is over.

        Raises:
            CheckpointWriteError: the storage did not take it.
        """
        self._store.create(f"{self._key()}.passed", b"{}")

    def forget(self) -> None:
        """Remove the turns before the current one; those of older generations stay, some 100 bytes each.

        Raises:
            CheckpointError: some may still be there.
        """
        folder = f"{self._base}/turns"
        for name in self._store.names(folder):
            if f"{self._generation:012}-" <= name < f"{self._generation:012}-{self._number:012}":
                self._store.remove(f"{folder}/{name}")

    def _listed(self) -> int:
        """The newest turn that the storage shows: a later one begins only when those before are over."""
        found = (_NAME.fullmatch(name) for name in self._store.names(f"{self._base}/turns"))
        return max(
            (int(match[2]) for match in found if match and int(match[1]) == self._generation), default=0
        )

    def _take(self, step: int) -> At:
        key = f"{self._key()}.json"
        turn = Turn(generation=self._generation, number=self._number, step=step)
        if not self._store.create(key, commits.seal(turn)):
            content = self._store.read(key, bytes_max=commits.BYTES_MAX)
            if content is None:
                raise CheckpointManifestError(path=key, reason="it was there, and is gone")
            turn = commits.unsealed(key, content, _turn)
        return At(self._generation, turn.step)

    def _is_over(self, at: At) -> bool:
        passed = self._store.read(f"{self._key()}.passed", bytes_max=commits.BYTES_MAX) is not None
        return passed or commits.read_commit(self._store, self._job, self._run, at) is not None

    def _key(self) -> str:
        return f"{self._base}/turns/{self._generation:012}-{self._number:012}"
