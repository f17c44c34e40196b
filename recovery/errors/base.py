"""What every error has: a stable code, an exit code, what it means for the next start, and its parts."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from typing_extensions import override


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


class RecoveryError(Exception):
    """Base of all. `temporary` is true where asking again can help."""

    code: ClassVar[str] = "RECOVERY"
    exit_code: ClassVar[int] = 1
    cause: ClassVar[Cause] = Cause.PERMANENT
    temporary: ClassVar[bool] = False
    """`cause` is TEMPORARY."""
    template: ClassVar[str] = "{text}"
    consequence: ClassVar[str] = ""
    """End of `template` that says what a plan or a training does next; a command has neither."""

    @override
    def __init_subclass__(cls) -> None:
        """Derive `temporary` from `cause`."""
        super().__init_subclass__()
        cls.temporary = cls.cause is Cause.TEMPORARY

    def __init__(self, **parts: object) -> None:
        """Fill the template of the class with `parts`, which stay readable as `error.parts`."""
        self.parts = parts
        shown = {name: _shown(part) for name, part in parts.items()}
        super().__init__(_printable(f"{self.code}: {self.template.format(**shown)}"))

    @property
    def fact(self) -> str:
        """What is wrong, where no plan and no training goes on: the text without `consequence`."""
        text = str(self)
        if not self.consequence or not text.endswith(self.consequence):
            return text
        return text.removesuffix(self.consequence) + "."


def _shown(part: object) -> object:
    """As it was typed: a path without the name of its class, a member of an enumeration by its value."""
    if hasattr(part, "__fspath__"):
        return str(part)
    return part.value if isinstance(part, Enum) else part


def _printable(text: str) -> str:
    """Escape what does not print: a peer or a file may have put it into a part, and the text ends on a terminal."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class InvariantError(AssertionError):
    """A promise inside the engine is broken: a bug of ours, never of the user."""


class GenerationInterrupted(BaseException):
    """Leaves the training function when its generation is over. Not an `Exception`, so that `except Exception` lets it pass."""

    def __init__(self, generation: int, reason: str) -> None:
        """Keep which generation ended and why."""
        self.generation, self.reason = generation, reason
        super().__init__(f"generation {generation} ended: {reason}")
