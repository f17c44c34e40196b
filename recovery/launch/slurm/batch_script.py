"""The batch script of a job: what is typed becomes `#SBATCH` lines and the command that starts one step for each host. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from recovery.errors import SettingError
from recovery.launch.slurm import workers_asked

NOTICE_S = 120
"""How long before a time limit the job is told. A save of some GB and the end of its processes fit; a job of an hour loses 3 % of its time."""

OURS = {
    "nodes": "N",
    "spares": "",
    "submit": "",
    "recovery-path": "",
    "notice": "",
}
"""Options that are read here, with their short names. All others are sbatch's."""
_SWITCHES = ("submit",)

_SET_HERE = {
    "ntasks": "There is one launcher a host: leave it out, and give --nproc-per-node behind --.",
    "ntasks-per-node": "There is one launcher a host: leave it out, and give --nproc-per-node behind --.",
    "signal": "Give --notice=SECONDS.",
    "kill-on-bad-exit": "Leave it out: each host has a step of its own.",
    "wrap": "Give the command behind --.",
}
"""Options of sbatch's that would change what the script relies on, with what is to be done instead."""


_SHARES = {"exclusive", "cpus-per-task", "c", "cpus-per-gpu", "oversubscribe", "s"}
"""Options of sbatch's that say how much of a host is the job's."""


class Line(NamedTuple):
    """What was typed."""

    nodes: int
    """Hosts that train."""
    spares: int
    """Hosts that wait."""
    submit: bool
    recovery_path: str
    """Empty: `recovery` below the directory in which the job is submitted."""
    notice_s: int
    sbatch: tuple[str, ...]
    """Of sbatch, as they were typed, a value behind `=` or a space."""
    run: tuple[str, ...]
    """Options of `recovery run`, the script and its arguments."""


def read(words: Sequence[str]) -> Line:
    """Read `[options] -- [options of recovery run] script [arguments]`.

    Raises:
        SettingError: there is no `--` or nothing behind it; an option is set by the script itself, or its value is not of its kind.
    """
    if "--" not in words or words[-1] == "--":
        raise _refuse(
            "",
            " ".join(words),
            "must stand between the options of sbatch and what `recovery run` is given",
            "Write, for example: recovery slurm --nodes=2 --time=8:00:00 -- --nproc-per-node=4 train.py.",
        )
    at = list(words).index("--")
    given: dict[str, str] = {}
    passed: list[str] = []
    for word in _joined(words[:at]):
        name, equals, value = word.lstrip("-").partition("=")
        long = next((one for one, short in OURS.items() if name in (one, short) and name), name)
        if long in _SET_HERE:
            raise _refuse(long, value, "is set by the batch script itself", _SET_HERE[long])
        if long not in OURS:
            passed.append(word)
        elif (long in _SWITCHES) is bool(equals):
            rule = "takes no value" if equals else "needs a value"
            raise _refuse(long, value, rule, f"Write --{long}{'' if equals else '=VALUE'}.")
        else:
            given[long] = value
    return Line(
        nodes=_count("nodes", given.get("nodes", "1"), 1),
        spares=_count("spares", given.get("spares", "0"), 0),
        submit="submit" in given,
        recovery_path=given.get("recovery-path", ""),
        notice_s=_count("notice", given.get("notice", str(NOTICE_S)), 10),
        sbatch=tuple(passed),
        run=tuple(words[at + 1 :]),
    )


def with_workers(line: Line) -> tuple[Line, str]:
    """Give each host as many workers as sbatch is asked for GPUs of it, for a line that does not say how many. Gives what is to be said of that, too.

    Raises:
        SettingError: GPUs are asked for, and how many of them a host has is left open.
    """
    asked = workers_asked.read(line.sbatch)
    typed = (f"--nproc-per-node={asked.number}",) if asked.number else ()
    return line._replace(run=(*typed, *line.run)), asked.note


def render(line: Line, typed: Sequence[str], interpreter: str) -> str:
    """The script.

    Args:
        line: what it is to do.
        typed: all words of the command, for its first lines.
        interpreter: that the hosts find under the same path.
    """
    hosts = line.nodes + line.spares
    options = {
        "nodes": f"={hosts}",
        "ntasks-per-node": "=1",
        "requeue": "",
        "open-mode": "=append",
        # Told to the batch script alone, which has every rank save a step.
        "signal": f"=B:USR1@{line.notice_s}",
        # A lost host is not the end of the others, where one waits for it.
        **({"no-kill": ""} if line.spares else {}),
    }
    names = {word.lstrip("-").partition("=")[0] for word in line.sbatch}
    if "no-requeue" in names:
        del options["requeue"]
    if not names & _SHARES:
        # One task a host would have one processor.
        options["exclusive"] = ""
    ours = [f"--{name}{value}" for name, value in options.items() if name not in names]
    step = [
        interpreter,
        "-m",
        "recovery.launch.slurm.batch_step",
        f"--nodes={line.nodes}",
        f"--notice={line.notice_s}",
    ]
    path = [f"--recovery-path={line.recovery_path}"] if line.recovery_path else []
    return "\n".join(
        (
            "#!/bin/bash",
            f"# Made by: recovery slurm {shlex.join(typed)}",
            *(f"#SBATCH {_quoted(word)}" for word in (*ours, *line.sbatch)),
            "",
            f"exec {shlex.join([*step, *path, '--', *line.run])}",
            "",
        )
    )


def _joined(words: Sequence[str]) -> list[str]:
    """Options with their values: a word that is no option is the value of the one before."""
    found: list[str] = []
    for word in words:
        short = word[1:2] in OURS.values() and not word.startswith("--")
        if short and word[2:] and word[2] != "=":
            found.append(f"{word[:2]}={word[2:]}")
        elif word.startswith("-"):
            found.append(word)
        elif found and "=" not in found[-1]:
            found[-1] += f"={word}"
        else:
            raise _refuse(
                "", word, "is no option, and no option before it takes it", "Put the script behind --."
            )
    return found


def _quoted(word: str) -> str:
    name, equals, value = word.partition("=")
    # A short option's value stands behind a space.
    if equals and not name.startswith("--"):
        return f"{name} {shlex.quote(value)}"
    return f"{name}{equals}{shlex.quote(value) if equals else ''}"


def _count(name: str, text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise _refuse(
            name,
            text,
            f"must be a whole number from {least} on",
            f"Give, for example, --{name}={max(2, least)}.",
        )
    return int(text)


def _refuse(option: str, value: str, rule: str, next_step: str) -> SettingError:
    return SettingError("SETTING_RANGE", field=f"--{option}", value=value, rule=rule, next_step=next_step)
