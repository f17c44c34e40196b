"""One row of the table of planted bugs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PROMISES = {
    "I1": "never two live incarnations of one node id",
    "I2": "incarnations, generations and scheduler incarnations only rise",
    "I3": "a lost id is refused for its whole window, and not for longer",
    "I4": "a refused registration changes nothing of the holder",
    "I5": "acknowledged means durable",
    "I6": "not acknowledged: all or nothing, never half",
    "I7": "one writer per store",
    "I8": "no uncommitted, foreign or unverified checkpoint is loaded",
    "I9": "the plan is the newest step that all ranks hold, the same for all",
    "I10": "no step is counted twice or left out",
    "I11": "what a rollback may still need is never deleted",
    "I12": "a stale incarnation's message has no effect",
    "I13": "a repeated request has one effect and the same answer",
    "I14": "every wait ends",
    "I15": "who does not belong to the job is not heard",
    "I16": "no secret where others can read it",
    "I17": "what a peer can cost is bounded",
    "I19": "damage is reported, never guessed away",
    "I20": "the final bits are those of an undisturbed run",
    "I21": "a rank is taken over only from who is gone, and goes on from its own files",
    "I22": "a rank and a place have one holder, and both are written at once",
    "I23": "a wrong word on a process's end takes nobody's place away",
    "I24": "nobody waits for a standby",
    "I25": "who can take a rank is let in and asked as soon as it is free",
    "I26": "a rank that is handed over loses no step, who stopped for it goes on, and who was asked to end ends",
    "I27": "a plan names only who holds",
    "I28": "what comes from another node is loaded only when it is what was named",
    "I29": "a copy never outlives its lineage, and none that a plan needs is let go",
    "I30": "a plan goes to a rank's memory only where that is whole, of this history, and newest",
    "I31": "nobody trains on before all ranks have taken the same state",
}
"""What a bug breaks: the numbers of docs/guarantees.md."""


class Bug(NamedTuple):
    """A mutation of one place in the package, and who must notice it."""

    name: str
    """What is wrong then, in a short sentence; unique."""
    breaks: str
    """A key of `PROMISES`."""
    file: str
    """Below `recovery/`."""
    old: str
    """Stands exactly once in the file."""
    new: str
    caught_by: tuple[str, ...]
    """What pytest is given: the smallest set of tests that must fail."""

    def occurrences(self, package: Path) -> int:
        """How often the old text stands in the file of `package`; the table follows the code when it is 1."""
        return (package / self.file).read_text(encoding="utf-8").count(self.old)

    def check(self, package: Path) -> None:
        """See that the row follows the code.

        Raises:
            ValueError: the old text does not stand there exactly once.
        """
        found = self.occurrences(package)
        if found != 1:
            message = f'"{self.name}": the old text stands {found} times in recovery/{self.file}, not once'
            raise ValueError(message)

    def plant(self, package: Path) -> None:
        """Write the mutation into the private copy `package`. Raises as `check`."""
        self.check(package)
        path = package / self.file
        path.write_text(path.read_text(encoding="utf-8").replace(self.old, self.new), encoding="utf-8")
