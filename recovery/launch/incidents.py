"""What went wrong, kept: one `incident-<n>.json` per failure, with the failures that followed from it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from recovery import file_systems, owner_files
from recovery.launch import console

_LAST_LINES = 30
_LIBRARY_NOTE = re.compile(
    r"^(nanobind: | - leaked (instance|type|function|record)| - \.\.\. skipped remainder|See https://nanobind\.)"
)
"""What libraries print behind the reason, at the end of every process: torch 2.15 lists what nanobind leaked, in some 27 lines."""
_RANKS = re.compile(r"^(\[rank[0-9]+\]: ?)+")
_HEAD = re.compile(r" *(\+ Exception Group )?Traceback \(most recent call last\)")
_FOLLOWED_BY = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_TAIL_BYTES = 64 * 1024
_FOLLOWS_MS = 30_000
"""A process that was running when another failed, and fails within this, fails because of it: what waits for a lost peer in a
collective gets an error within seconds, or after its framework's own timeout (gloo and NCCL: longer, but then nobody waits for it here)."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One process that ended badly."""

    process: str
    rank: int | None
    """None: the scheduler, or a worker whose rank only the scheduler knows."""
    start: int
    """Which start of the process it was, 1-based."""
    status: str
    """`exit code 1`, `killed by SIGKILL`."""
    wall: str
    """When, ISO 8601, UTC."""
    consequence: str
    log: str
    """Path."""


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """A failure with the lines that say why."""

    first: Failure
    """Whose fault it was."""
    traceback: tuple[str, ...]
    """The last traceback in its log; empty: there is none."""
    last_lines: tuple[str, ...]
    """The end of its log."""
    followed: tuple[Failure, ...] = ()
    """What failed because of it, in order."""

    @property
    def shown_lines(self) -> tuple[str, ...]:
        """What says most in the fewest lines."""
        return self.traceback or self.last_lines[-5:]


class Incidents:
    """Of one launcher."""

    def __init__(self, directory: Path) -> None:
        """Files that are there stay."""
        self._directory = directory
        self.newest: Incident | None = None
        """The last that was no consequence of another; None: nothing has failed."""
        self._newest_ms, self._newest_says_why = 0, False
        self._path: Path | None = None
        """Of the newest; None: it has no file yet."""
        self._ends: dict[str, tuple[str, ...]] = {}
        """By process, what `repeats` compares, of its attempt before; empty: it had no output."""

    def repeats(self, process: str, lines: tuple[str, ...]) -> bool:
        """Did this process end as its attempt before: with the same tracebacks, or without any the same last line? Asked once an attempt."""
        end = _chain(_bare(lines)) or lines[-1:]
        before, self._ends[process] = self._ends.get(process), end
        return bool(end) and before == end

    def note(
        self,
        failure: Failure,
        lines: tuple[str, ...],
        *,
        begun_ms: int,
        ended_ms: int,
        job_goes_on: bool = False,
        says_why: bool = False,
    ) -> Path:
        """Keep a failure: as an incident of its own, or with the one that it follows from. Gives the file.

        A file that cannot be written is named on the console, and ends nothing: the incident stays in memory for the launcher's last lines.

        Args:
            failure: what happened.
            lines: that the process has printed last.
            begun_ms: when this attempt of the process began, on the monotonic clock.
            ended_ms: when it ended.
            job_goes_on: without the process. Then it is kept, and is the reason of no later failure.
            says_why: by its exit code, for good: a survivor whose checkpoint is refused has not failed because another process was killed. The first
                that does is the reason of all that follow.
        """
        newest, path = self.newest, self._path
        is_own = says_why and not self._newest_says_why
        follows = (
            newest is not None and begun_ms < self._newest_ms and ended_ms - self._newest_ms < _FOLLOWS_MS
        )
        if newest is not None and follows and not is_own:
            incident = msgspec.structs.replace(newest, followed=(*newest.followed, failure))
        else:
            path = None
            incident = Incident(
                first=failure, traceback=_traceback(_bare(lines)), last_lines=lines[-_LAST_LINES:]
            )
            if job_goes_on:
                return self._written(incident, path) or self._directory / "incident"
            self._newest_ms, self._newest_says_why = ended_ms, says_why
        self.newest = incident
        self._path = self._written(incident, path)
        return self._path or self._directory / "incident"

    def show_cause(self, flags: Mapping[str, str]) -> None:
        """Show the first failure with its last lines, then what followed; nothing where there was none.

        Args:
            flags: by variable, what was typed to set it: the processes, whose lines these are, know the variable alone.
        """
        incident = self.newest
        if incident is None:
            return
        first, lines = incident.first, incident.shown_lines
        is_shown = any(console.is_shown(line) for line in lines)
        why = f"{first.status}{', for what is shown above' if is_shown else ''}"
        console.say(f"the job failed: {first.process} start {first.start}: {why}", style="bold red")
        for line in () if is_shown else lines:
            console.say(f"    {line}")
        named = {name for line in lines for name in re.findall(r"\bMS_[A-Z_]+\b", line)}
        for name in sorted(named & flags.keys()):
            console.say(f"  {name} is set by {flags[name]} here")
        for failure in incident.followed:
            console.say(f"  it was followed by {failure.process} start {failure.start}: {failure.status}")
        console.say(f"  its log: {first.log}")

    def _written(self, incident: Incident, path: Path | None) -> Path | None:
        """Write it, under the next free name where it has none yet. Gives the file; None: it has none."""
        content = msgspec.json.format(msgspec.json.encode(incident)) + b"\n"
        try:
            if path is None:
                return _under_free_name(self._directory, content)
            owner_files.write_over(path, content)
        except OSError as error:
            console.say(
                f"{path or self._directory / 'incident'} could not be written ({file_systems.words_of(error, self._directory)})",
                style="yellow",
            )
        return path


def _under_free_name(directory: Path, content: bytes) -> Path:
    """The next number; another host's launcher may keep its incidents in the same directory."""
    number = 1
    while True:
        path = directory / f"incident-{number}.json"
        if not os.path.lexists(path):
            with contextlib.suppress(FileExistsError):
                file_systems.write_new(path, content, 0o600)
                return path
        number += 1


def _traceback(lines: tuple[str, ...]) -> tuple[str, ...]:
    """From the last traceback's head to the line that names the error."""
    heads = _heads(lines)
    return lines[heads[-1] : _end_of(lines, heads[-1])] if heads else ()


def _chain(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The last traceback with those of its causes: the same error may have come from another place."""
    heads = _heads(lines)
    if not heads:
        return ()
    begin = heads[-1]
    for before in reversed(heads[:-1]):
        if not any(line in _FOLLOWED_BY for line in lines[before:begin]):
            break
        begin = before
    return lines[begin : _end_of(lines, heads[-1])]


def _heads(lines: tuple[str, ...]) -> list[int]:
    """Where tracebacks begin that do not end long before the log does: an error that was handled is no reason."""
    found = (number for number, line in enumerate(lines) if _HEAD.match(line))
    return [number for number in found if _end_of(lines, number) > len(lines) - _LAST_LINES]


def _end_of(lines: tuple[str, ...], head: int) -> int:
    """Behind the first line that is not indented; a group of exceptions has none."""
    behind = range(head + 1, len(lines))
    return next((number + 1 for number in behind if lines[number] and lines[number][0] != " "), len(lines))


def _bare(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Without the ranks that torch writes before each line."""
    return tuple(_RANKS.sub("", line) for line in lines)


def last_lines(output: Path | list[str]) -> tuple[str, ...]:
    """What a process's newest start has printed last, but for what libraries print at its end; empty where that cannot be read.

    Args:
        output: its log, which says where that start begins; or all lines.
    """
    lines = _lines_of(output) if isinstance(output, Path) else output[:]
    while lines and _LIBRARY_NOTE.match(_RANKS.sub("", lines[-1])):
        del lines[-1]
    return tuple(lines)


def _lines_of(log: Path) -> list[str]:
    try:
        with owner_files.to_read(log) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL_BYTES))
            lines = stream.read(_TAIL_BYTES).decode(errors="replace").splitlines()
    except (OSError, MemoryError):
        return []
    marks = [
        number for number, line in enumerate(lines) if line.startswith(f"{console.MARK} {log.stem} start ")
    ]
    return lines[marks[-1] + 1 if marks else 0 :]
