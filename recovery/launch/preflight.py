"""Mistakes that people make before a job: each is found before anything starts, and answered in one line with the next thing to type.

One table: what is looked at, the sentence, the next thing to type. A mistake with which no job can run refuses the command; another one is said,
and the job starts, since msrun's contract allows it. What stands behind a variable's value is checked by the settings' own table.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from recovery import clock, config
from recovery.config.table import BY_NAME
from recovery.core.records import CheckpointState, JobRecord, JobState
from recovery.errors import RecoveryError, SettingError
from recovery.frameworks import used
from recovery.launch import program_check
from recovery.launch.job_spec import JobSpec
from recovery.launch.placement import Placed, ProcessKind, environment_of, program_of
from recovery.launch.presence import Kind, look_at
from recovery.launch.script_imports import Reading
from recovery.store.paths import scheduler_path

if TYPE_CHECKING:
    from recovery.store.contents import SchedulerRecords

_LIKE = 0.85
"""How like a setting's name another one is that was meant to be it: two letters of twelve may be swapped, and MS_SERVER_NUM is no MS_WORKER_NUM."""
_ENDING_MS = 2_000
"""How long the scheduler of a launcher that was killed may take to end."""
_LOOK_AGAIN_S = 0.05
_nothing = threading.Event()
_ENTERED_BY = {"run", "init", "join"}
"""Names by which a script enters training. Any of that name: a script that has them and no training is started all the same."""


class Looked(NamedTuple):
    """What there is before anything starts."""

    spec: JobSpec
    environment: Mapping[str, str]
    """The launcher's own."""
    reading: Reading
    """Of the script."""
    placed: Sequence[Placed]
    """What would be started here, the scheduler first where it is this host's."""
    directory: Path
    """Where."""


Parts = dict[str, object]
"""What a row's texts are filled with; `value` is what was typed."""


class Check(NamedTuple):
    """One row."""

    field: str
    find: Callable[[Looked], Iterator[Parts]]
    """What is looked at: gives the parts of each mistake."""
    rule: str
    next_step: str
    refuses: bool = False


def _cannot_be_run(looked: Looked) -> Iterator[Parts]:
    fault = program_check.find_fault(program_of(looked.spec, sys.executable), looked.directory)
    if fault is not None:
        yield fault._asdict()


def _broken(looked: Looked) -> Iterator[Parts]:
    for path in looked.reading.entry_points:
        try:
            ast.parse(path.read_bytes())
        except SyntaxError as error:
            yield {"value": str(path), "line": error.lineno, "fault": error.msg}
        except (OSError, ValueError, RecursionError):
            # Its own start says why.
            continue


def _misspelt(looked: Looked) -> Iterator[Parts]:
    for name in sorted(looked.environment):
        if name.startswith("MS_") and name not in BY_NAME:
            like = difflib.get_close_matches(name, BY_NAME, 1, _LIKE)
            if like:
                yield {"value": name, "like": like[0]}


def _wrong_settings(looked: Looked) -> Iterator[Parts]:
    """What the first process would be refused for.

    Raises:
        SettingError: a variable is wrong.
    """
    if looked.spec.dry_run is None:
        config.load(environment_of(looked.placed[0], looked.environment, restarts=0))
    yield from ()


def _recovery_off(looked: Looked) -> Iterator[Parts]:
    if "MS_ENABLE_RECOVERY" not in looked.environment and looked.spec.dry_run is None:
        yield {"script": looked.spec.task[0]}


def _never_trains(looked: Looked) -> Iterator[Parts]:
    packages = looked.reading.packages
    if "recovery" not in packages or not all(each.trains_through_session for each in used(packages)):
        return
    if not any(_ENTERED_BY & _names_in(path) for path in looked.reading.files):
        yield {"value": looked.spec.task[0]}


def _names_in(path: Path) -> set[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return _ENTERED_BY
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return attributes | {alias.name for node in imports for alias in node.names}


def _recovery_path(looked: Looked) -> Path | None:
    """Where the job's state is kept; None: recovery is off."""
    path = looked.environment.get("MS_RECOVERY_PATH", "")
    return Path(path) if path and looked.environment.get("MS_ENABLE_RECOVERY") == "1" else None


def _stored(looked: Looked) -> Iterator[tuple[JobRecord, SchedulerRecords]]:
    """The job of the recovery path, where its store is here and can be read."""
    path = _recovery_path(looked)
    if path is None or look_at(scheduler_path(path)).kind is not Kind.FILE:
        return
    from recovery.store.reader import read_scheduler  # noqa: PLC0415 - where there is no store, a launcher begins without a database

    # What is wrong with the store is said by the process that opens it.
    with contextlib.suppress(RecoveryError, OSError):
        stored = read_scheduler(path)
        if stored.job is not None:
            yield stored.job, stored


def _runs_already(looked: Looked) -> Iterator[Parts]:
    """A launcher of this host runs the scheduler of this path: a second one would write into its logs until its own scheduler is refused.

    Raises:
        StoreLockedError: it is so.
    """
    path = _recovery_path(looked)
    if path is None or looked.placed[0].kind is not ProcessKind.SCHEDULER:
        return
    from recovery.store.lock import found_locked  # noqa: PLC0415 - as in _stored

    until_ms = clock.monotonic_ms() + _ENDING_MS
    while (locked := found_locked(scheduler_path(path))) is not None:
        if clock.monotonic_ms() >= until_ms:
            yield {"value": path}
            raise locked
        _nothing.wait(_LOOK_AGAIN_S)


def _other_world(looked: Looked) -> Iterator[Parts]:
    """The job that is stored has another number of workers than the command."""
    spec = looked.spec
    for job, _ in _stored(looked):
        if job.worker_count != spec.worker_num:
            typed = ("--nproc-per-node", spec.local_worker_num) if spec.typed_as == "run" else None
            flag, value = typed or ("--worker_num", spec.worker_num)
            path = looked.environment["MS_RECOVERY_PATH"]
            numbers = {"total": spec.worker_num, "stored": job.worker_count}
            yield {"field": flag, "value": value, "path": path, **numbers}


def _finished(looked: Looked) -> Iterator[Parts]:
    for job, stored in _stored(looked):
        if job.state is JobState.FINISHED:
            of_run = (one for one in stored.checkpoints if one.run == job.run)
            step = max((one.step for one in of_run if one.state is CheckpointState.COMMITTED), default=0)
            as_torchrun = looked.spec.typed_as == "run"
            words = ("--continue", "--new-run") if as_torchrun else ("--continue=True", "--continue=False")
            path = looked.environment["MS_RECOVERY_PATH"]
            numbers = {"run": job.run, "next": job.run + 1, "step": step}
            yield {"value": path, **numbers, "go_on": words[0], "again": words[1]}


def _begins_again(looked: Looked) -> Iterator[Parts]:
    """Its next run would begin at step 0, over what the script has written."""
    if "MS_CONTINUE" not in looked.environment:
        yield from (parts for parts in _finished(looked) if parts["step"])


def _next_run(looked: Looked) -> Iterator[Parts]:
    if looked.environment.get("MS_CONTINUE", "0") == "0":
        yield from _finished(looked)


def _goes_on(looked: Looked) -> Iterator[Parts]:
    if looked.environment.get("MS_CONTINUE") == "1":
        yield from _finished(looked)


def _fewer_here(looked: Looked) -> Iterator[Parts]:
    spec = looked.spec
    others = spec.worker_num - spec.local_worker_num
    if spec.worker_num_is_default and others and spec.dry_run is None:
        limit = f"{spec.cluster_time_out} s" if spec.cluster_time_out >= 0 else "without limit"
        yield {
            "value": spec.local_worker_num,
            "total": spec.worker_num,
            "others": others,
            "limit": limit,
            "script": spec.task[0],
        }


CHECKS: tuple[Check, ...] = (
    Check(
        "task_script",
        _cannot_be_run,
        "{rule}",
        "{next_step}",
        refuses=True,
    ),
    Check(
        "task_script",
        _broken,
        "line {line} is no Python ({fault}), so every worker would end at once",
        "python -m py_compile {value} shows the place.",
        refuses=True,
    ),
    Check(
        "environment",
        _misspelt,
        "{value} is no setting, and has no effect",
        "Perhaps it is {like}; `recovery env` lists them all.",
    ),
    Check("environment", _wrong_settings, "", "", refuses=True),
    Check(
        "task_script",
        _never_trains,
        "{value} imports recovery and calls neither recovery.run nor recovery.init: a worker that ends without training is a failure",
        "Write recovery.run(train)() around its training function, or start it with --restart=world.",
    ),
    Check(
        "MS_ENABLE_RECOVERY",
        _recovery_off,
        "recovery is OFF: the first failure ends the job",
        "MS_ENABLE_RECOVERY=1 MS_RECOVERY_PATH=DIR recovery msrun ... {script} turns it on.",
    ),
    Check(
        "MS_RECOVERY_PATH",
        _runs_already,
        "a job of {value} runs on this host already",
        "All workers of one host belong in one command: give that one --nproc-per-node (--local_worker_num of msrun). Another job needs another path.",
    ),
    Check(
        "--worker_num",
        _other_world,
        "makes {total} workers in all, and the job of {path} has {stored}: a job keeps their number",
        "Give a number that makes {stored}, or begin another job: another MS_RECOVERY_PATH, or `recovery reset {path}` first.",
        refuses=True,
    ),
    Check(
        "MS_RECOVERY_PATH",
        _begins_again,
        "its job has finished (run {run}), its checkpoint of step {step} is there, and nothing says whether training is to go on there",
        "{go_on} goes on from step {step}, to a later end; {again} begins run {next} at step 0, and the script writes its files again. "
        "For another job give another directory, or type `recovery reset {value}` first.",
        refuses=True,
    ),
    Check(
        "MS_RECOVERY_PATH",
        _goes_on,
        "the job of {value} has finished (run {run}), and this start goes on with that run, from step {step}",
        "It ends at once unless the script's end is later than before.",
    ),
    Check(
        "MS_RECOVERY_PATH",
        _next_run,
        "the job of {value} has finished (run {run}), and this start begins run {next} of the same job",
        "For another job give another directory, or type `recovery reset {value}` first.",
    ),
    Check(
        "--nproc_per_node",
        _fewer_here,
        "{value} of --worker_num={total} workers (the default) start here, and the job waits for {others} more from other hosts, {limit}",
        "Where this is the only host: recovery msrun --worker_num={value} ... {script}.",
    ),
)


def look(looked: Looked, say: Callable[[str], None]) -> None:
    """Go through the table.

    Args:
        looked: at what.
        say: one line for people; the job starts all the same.

    Raises:
        SettingError: with this mistake no job can run.
        StoreLockedError: a job runs on this path already.
    """
    for check in CHECKS:
        for parts in check.find(looked):
            rule, next_step = check.rule.format_map(parts), check.next_step.format_map(parts)
            if check.refuses:
                raise SettingError(
                    "SETTING_RANGE",
                    field=str(parts.get("field", check.field)),
                    value=parts["value"],
                    rule=rule,
                    next_step=next_step,
                )
            say(f"{check.field}: {rule}. {next_step}")
