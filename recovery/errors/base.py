"""What every error has: a row of the table, the parts of its sentence, and a class for code that catches it."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar, NamedTuple


class Cause(str, Enum):
    """What an error means for the next start of the same command. The launcher decides by it, and the page of errors shows it."""

    TEMPORARY = "temporary"
    """The next start may go on: it is started again, later each time."""
    PERMANENT = "permanent"
    """The next start would end the same way."""
    UNKNOWN = "unknown"
    """A mistake of the command at its first start; trouble of the machine where the same command has run before."""
    SCRIPT = "script"
    """The script ended its process, as by an exception of its own: started again once the job has made a step, unless it repeats itself."""


class Row(NamedTuple):
    """One error, as users, launchers and documents know it."""

    code: str
    """Never changes."""
    exit_code: int
    cause: Cause
    template: str = "{reason}"
    """The sentence. Parts of the error fill it."""
    meaning: str = ""
    """When it happens, in a line for the reference. Empty: as its class says."""
    consequence: str = ""
    """End of `template` that says what a plan or a training does next; a command has neither."""

    @property
    def temporary(self) -> bool:
        """Whether asking again can help."""
        return self.cause is Cause.TEMPORARY


class RecoveryError(Exception):
    """Base of all. A class is there for code that catches it; each of its `rows` is one error."""

    rows: ClassVar[tuple[Row, ...]] = (Row("RECOVERY", 1, Cause.PERMANENT, "{text}"),)

    def __init__(self, code: str = "", /, **parts: object) -> None:
        """Fill the template of a row with `parts`, which stay readable as `error.parts`.

        Args:
            code: of the row; a class of one row needs none.
            parts: what the template names.
        """
        found = [row for row in self.rows if code in ("", row.code)]
        assert len(found) == 1, f"{type(self).__name__} has no error {code!r} of its own"
        [self.row] = found
        self.code, self.exit_code, self.cause = self.row.code, self.row.exit_code, self.row.cause
        self.temporary = self.row.temporary
        self.parts = parts
        shown = {name: _shown(part) for name, part in parts.items()}
        if "\n" in str(shown.get("reason", "")):
            shown["reason"] = one_line(str(shown["reason"]))
        super().__init__(printable(f"{self.code}: {self.row.template.format(**shown)}"))

    @property
    def fact(self) -> str:
        """What is wrong, where no plan and no training goes on: the text without the row's `consequence`."""
        text, consequence = str(self), self.row.consequence
        if not consequence or not text.endswith(consequence):
            return text
        return text.removesuffix(consequence) + "."


def _shown(part: object) -> object:
    """As it was typed: a path without the name of its class, a member of an enumeration by its value."""
    if hasattr(part, "__fspath__"):
        return str(part)
    return part.value if isinstance(part, Enum) else part


def one_line(text: str) -> str:
    """A text of several lines (a framework's error) as a clause of a sentence."""
    return " ".join(text.split()).rstrip(".")


def printable(text: str) -> str:
    r"""Escape what does not print (line ends, terminal controls, direction marks) as \n, \x1b, \u202e: the text ends on a terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


class InvariantError(AssertionError):
    """A promise inside the engine is broken: a bug of ours, never of the user."""


class GenerationInterrupted(BaseException):
    """Leaves the training function when its generation is over. Not an `Exception`, so that `except Exception` lets it pass."""

    def __init__(self, generation: int, reason: str) -> None:
        """Keep which generation ended and why."""
        self.generation, self.reason = generation, reason
        super().__init__(f"generation {generation} ended: {reason}")
