"""One row of the table of planted bugs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.planted import fragments

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
    "I32": "training that a script has ended ends at one step for all ranks, and nothing behind it is trained",
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
    function: str
    """Qualified name of the function, method or class that holds the place; empty: it stands outside of them."""
    old: str
    """A fragment (`tests.planted.fragments`) that stands there exactly once."""
    new: str
    """What takes its place: a fragment of the same kind; empty: the statements are removed."""
    caught_by: tuple[str, ...]
    """What pytest is given: the smallest set of tests that must fail."""
    hangs: bool = False
    """Is it noticed only because a test waits, up to a limit, for what does not come? Such a row is planted where there is time for it."""

    def places(self, package: Path) -> list[fragments.Place]:
        """Where the old fragment stands in `package`; the table follows the code when there is one place."""
        source = (package / self.file).read_text(encoding="utf-8")
        return fragments.places(source, self.function, self.old, self.new)

    def check(self, package: Path) -> fragments.Place:
        """See that the row follows the code; where it stands there.

        Raises:
            ValueError: the old fragment does not stand there exactly once, or one of the two is no code.
        """
        where = f"{self.function or 'the module'} of recovery/{self.file}"
        try:
            found = self.places(package)
        except SyntaxError as error:
            message = f'"{self.name}": a fragment for {where} cannot be read: {error}'
            raise ValueError(message) from error
        if len(found) != 1:
            message = f'"{self.name}": the old fragment stands {len(found)} times in {where}, not once'
            raise ValueError(message)
        return found[0]

    def plant(self, package: Path) -> None:
        """Write the mutation into the private copy `package`. Raises as `check`."""
        place, path = self.check(package), package / self.file
        mutated = fragments.written(path.read_text(encoding="utf-8"), place)
        path.write_text(mutated, encoding="utf-8")
