"""What Slurm says of a job to a process of it, by environment variables (srun(1) and sbatch(1), OUTPUT ENVIRONMENT VARIABLES). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from recovery.errors import SettingError

_DIGITS_MAX = 18
_PORTS, _FIRST_PORT, _STEP_STRIDE = 9_000, 12_000, 97
"""Pairs of ports below those that Linux gives to whoever asks for any (32768 and above): the scheduler's, and rank 0's behind it."""
_NUMBERS = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_LISTED = rf"(?:[^,\[\]\s]|\[{_NUMBERS}(?:,{_NUMBERS})*\])+"
_WORD, _LIST = re.compile(_LISTED), re.compile(rf"{_LISTED}(?:,{_LISTED})*")
_TASKS = re.compile(r"[0-9]{1,9}(\(x[0-9]{1,9}\))?(,[0-9]{1,9}(\(x[0-9]{1,9}\))?)*")
_BRACKET = re.compile(r"([^\[]*)\[([^\]]+)\](.*)")


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts of a job, or of the step of it that a process belongs to."""

    job_id: int
    """Of an array's task its own one."""
    step_id: int | None
    """None: the batch script, or what a person starts in the allocation."""
    hosts: tuple[str, ...]
    """Their names, the batch script's host first."""
    position: int
    """Of this host among them, 0-based."""
    tasks_per_host: int
    """The most that a host of the step has."""
    gpus: int
    """Of this host."""
    restarts: int
    """How often Slurm has put the job back into the queue."""

    @property
    def port(self) -> int:
        """Where the job's scheduler listens: another one for each job and step, since jobs may share a host."""
        pair = (self.job_id + _STEP_STRIDE * (self.step_id or 0)) % _PORTS
        return _FIRST_PORT + 2 * pair


def read(environment: Mapping[str, str]) -> Allocation | None:
    """Read it; None: this process is none of a Slurm job's.

    Raises:
        SettingError: a variable is not as Slurm writes it.
    """
    if "SLURM_JOB_ID" not in environment:
        return None
    in_step = "SLURM_STEP_ID" in environment and "SLURM_STEP_NODELIST" in environment
    names = "SLURM_STEP_NODELIST" if in_step else "SLURM_JOB_NODELIST"
    return Allocation(
        job_id=_number(environment, "SLURM_JOB_ID"),
        step_id=_number(environment, "SLURM_STEP_ID") if in_step else None,
        hosts=expand(environment.get(names, ""), names),
        position=_number(environment, "SLURM_NODEID"),
        tasks_per_host=_most(environment, "SLURM_STEP_TASKS_PER_NODE") if in_step else 1,
        gpus=_number(environment, "SLURM_GPUS_ON_NODE"),
        restarts=_number(environment, "SLURM_RESTART_COUNT"),
    )


def end_time(environment: Mapping[str, str]) -> int:
    """When Slurm ends the job, in seconds since 1970-01-01 UTC; 0: this process is none of a job's, or Slurm does not say. Raises as `read`."""
    return _number(environment, "SLURM_JOB_END_TIME") if "SLURM_JOB_ID" in environment else 0


def expand(names: str, variable: str = "SLURM_JOB_NODELIST") -> tuple[str, ...]:
    """The hosts of a list as Slurm shortens it: `n[01-03,7],m` are n01, n02, n03, n7 and m.

    Raises:
        SettingError: it is no such list; `variable` holds it.
    """
    if names and _LIST.fullmatch(names) is None:
        raise _wrong(variable, names, "must be a list of hosts as Slurm writes it: n[01-03,7],m")
    return tuple(host for word in _WORD.findall(names) for host in _hosts_of(word))


def _hosts_of(word: str) -> list[str]:
    parts = _BRACKET.fullmatch(word)
    if parts is None:
        return [word]
    before, numbers, behind = parts.groups()
    return [f"{before}{number}{rest}" for number in _numbers(numbers) for rest in _hosts_of(behind)]


def _numbers(text: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        found += [f"{n:0{len(low)}d}" for n in range(int(low), int(high) + 1)] if dash else [part]
    return found


def _most(environment: Mapping[str, str], name: str) -> int:
    """Of `2,1(x3)`: a host has two tasks, and three have one."""
    text = environment.get(name, "1")
    if _TASKS.fullmatch(text) is None:
        raise _wrong(name, text, "must be how many tasks the hosts have: 2,1(x3)")
    return max(int(part.partition("(")[0]) for part in text.split(","))


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name) or "0"
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        raise _wrong(name, text, "must be a whole number, as Slurm sets it")
    return int(text)


def _wrong(name: str, text: str, rule: str) -> SettingError:
    next_step = "Unset SLURM_JOB_ID where this process is to take nothing from Slurm."
    return SettingError("SETTING_TYPE", field=name, value=text, rule=rule, next_step=next_step)
