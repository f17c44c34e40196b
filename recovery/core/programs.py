"""Do two hosts of a job run the same? The first difference, in words; what is one host's own by its name is left out.

It is said and not refused: who types a path of logs, a rank or a name of data at each host has started a job that is well, and nobody but the user knows it.
"""

from __future__ import annotations

import re

import msgspec

from recovery.core.message_fields import ShortText, Words

_OF_A_HOST = re.compile(
    r"--?([a-z]+[-_])*(rank|host|hostname|addr|address|ip|port|device|devices|log[-_]?dir|logs?)(=.*)?",
    re.DOTALL,
)
"""Options whose values a host, or a process, has for itself."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What a process runs, to be compared over the hosts of a job."""

    script: ShortText
    digest: ShortText
    """SHA-256 of the script's bytes, hex; empty: it is no file."""
    arguments: Words = ()
    """Of the script. A long one is cut, with a digest of the whole behind it."""
    settings: Words = ()
    """NAME=value of those that decide what training does, always the same names in one order."""


def difference(one: Program, other: Program, here: str, there: str) -> str:
    """Say where they differ first: script, arguments, then settings; empty: nowhere that counts.

    Args:
        one: what a process runs.
        other: what a process of another host runs.
        here: the host of the first.
        there: that of the other.
    """
    if (one.digest or other.digest) and one.digest != other.digest:
        return f"the script is {_script(one)} on {here} and {_script(other)} on {there}"
    mine, theirs = _of_the_job(one.arguments), _of_the_job(other.arguments)
    for number in range(max(len(mine), len(theirs))):
        first, second = _at(mine, number), _at(theirs, number)
        if first != second:
            before = f" behind {mine[number - 1]}" if number else ""
            return f"the script's arguments{before} are {first} on {here} and {second} on {there}"
    for first, second in zip(one.settings, other.settings, strict=False):
        if first != second:
            return f"{first} on {here} and {second} on {there}"
    return ""


def _script(program: Program) -> str:
    return f"{program.script} ({program.digest[:12]})" if program.digest else "no file"


def _of_the_job(arguments: tuple[str, ...]) -> list[str]:
    """Without options of a host, and without the values behind them."""
    kept, skips = list[str](), False
    for argument in arguments:
        skipped, skips = skips and not argument.startswith("-"), False
        found = _OF_A_HOST.fullmatch(argument)
        if found is not None:
            skips = found[3] is None
        elif not skipped:
            kept.append(argument)
    return kept


def _at(arguments: list[str], number: int) -> str:
    return arguments[number] if number < len(arguments) else "no more"
