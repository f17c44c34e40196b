"""A command that starts Python, taken apart: the interpreter's options, and what it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import Enum

import msgspec

_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_WITHOUT_VALUE = frozenset("bBdEIOPqRsSuv")
"""Letters that may stand together behind one hyphen. Not `-i` and `-x`, which change how a program is read or ends."""

_NAME_A_PROGRAM = frozenset("cmhV?")
"""Letters behind which a program follows, or none runs."""


def searches_own_directory() -> bool:
    """Does this interpreter put the directory of what it runs before all others in `sys.path`?"""
    # Python 3.10 has no `safe_path`.
    return not getattr(sys.flags, "safe_path", sys.flags.isolated)


class Runs(str, Enum):
    """What the interpreter is given."""

    SCRIPT = "script"
    MODULE = "module"


class PythonCommand(msgspec.Struct, frozen=True, kw_only=True):
    """`interpreter options... (script | -m module) arguments...`."""

    interpreter: str
    options: tuple[str, ...]
    runs: Runs
    target: str
    """The script as typed, or the module's name."""
    arguments: tuple[str, ...]
    """Behind the script or the module."""

    @property
    def argv(self) -> list[str]:
        """`sys.argv` before the first line; of a module the interpreter then puts its file into the first place."""
        return ["-m" if self.runs is Runs.MODULE else self.target, *self.arguments]


def parse_python_command(command: Sequence[str]) -> PythonCommand | None:
    """Take a command apart; None: it is none that a template can begin."""
    interpreter, *words = command
    options: list[str] = []
    while words:
        word = words.pop(0)
        if word == "-m" and words:
            return _made(interpreter, options, Runs.MODULE, words)
        if not word.startswith("-"):
            return _made(interpreter, options, Runs.SCRIPT, [word, *words])
        if word in _WITH_VALUE and words:
            options += [word, words.pop(0)]
        elif word.startswith(("-W", "-X")) or (len(word) > 1 and set(word[1:]) <= _WITHOUT_VALUE):
            options.append(word)
        else:
            return None
    return None


def takes_program_from_stdin(command: Sequence[str]) -> bool:
    """Does the interpreter read its program from standard input: by a lone hyphen, or since nothing else is named?"""
    words = list(command[1:])
    while words:
        word = words.pop(0)
        if word == "-":
            return True
        if word in _WITH_VALUE and words:
            words.pop(0)
        elif not word.startswith("-") or word.startswith("--") or _NAME_A_PROGRAM & set(word):
            return False
    return True


def _made(interpreter: str, options: list[str], runs: Runs, words: list[str]) -> PythonCommand:
    target, *arguments = words
    return PythonCommand(
        interpreter=interpreter,
        options=tuple(options),
        runs=runs,
        target=target,
        arguments=tuple(arguments),
    )
