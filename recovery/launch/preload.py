"""What a job's template imports: the packages that its script names, and what this engine and a framework import only when they need it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from recovery.frameworks import Framework, forming_worlds, used
from recovery.launch.forkserver.fork_messages import Prepare
from recovery.launch.placement import OF_ONE, OF_ONE_WORLD, named_first
from recovery.launch.python_command import PythonCommand, Runs, parse_python_command
from recovery.launch.script_imports import Reading, parse_script

_ENGINE = (
    "recovery.training.run", "recovery.training.callbacks", "recovery.store.repository", "recovery.store.writer",
    "recovery.store.reader", "aiohttp", "encodings.idna", "watchdog.observers",
)  # fmt: skip
"""What a script that imports `recovery` needs of it sooner or later."""
_PROXY = "recovery.launch.worker_proxy"
_OF_THE_PROXY = ("psutil", *(framework.program_world for framework in forming_worlds().values()))


def prepare_for(command: PythonCommand, words: Sequence[str], directory: Path) -> Prepare:
    """Say what the template of a worker imports; of a worker proxy, so that its programs can be forked too.

    Args:
        command: of the worker.
        words: the same, behind the interpreter.
        directory: where it is started.
    """
    if command.target != _PROXY:
        return _of_script(command, parse_script(words, directory))
    framework, of_program = named_first(command.arguments)
    program, reading = parse_python_command(of_program), parse_script(of_program[1:], directory)
    reason = _why_spawned(framework, command, program, reading)
    if program is None or reason:
        return Prepare(modules=(), programs=True, refusal=reason)
    script = _of_script(program, reading)
    besides, of_one = (*script.besides, *_ENGINE, *_OF_THE_PROXY), (*OF_ONE, *OF_ONE_WORLD)
    return msgspec.structs.replace(script, besides=besides, of_one=of_one, programs=True)


def proxies_only() -> Prepare:
    """Say what the template of worker proxies imports whose programs are spawned."""
    return Prepare(modules=(), besides=(*_ENGINE, *_OF_THE_PROXY), of_one=OF_ONE)


def _why_spawned(
    framework: Framework | None, proxy: PythonCommand, program: PythonCommand | None, reading: Reading
) -> str:
    """Why a program cannot be forked from a template of its proxy; empty: it can."""
    if framework is not None and framework.never_forked:
        return framework.never_forked
    if program is None:
        return "they are not started as `python script` or `python -m module`"
    if (program.interpreter, program.options) != (proxy.interpreter, proxy.options):
        return "another interpreter than their worker proxies', or other options of it"
    # Our package for a framework would take its part in the proxy as well.
    return "their script imports recovery itself" if "recovery" in reading.packages else ""


def _of_script(command: PythonCommand, reading: Reading) -> Prepare:
    ours, frameworks = "recovery" in reading.packages, used(reading.packages)
    named = [name for name in reading.modules if not name.startswith("__")]
    compared = {
        *(name.partition(".")[0] for name in named),
        *(["recovery"] if ours else []),
        *(framework.name for framework in frameworks),
    }
    return Prepare(
        modules=tuple(named),
        besides=(
            *(_ENGINE if ours else ()),
            *(name for each in frameworks for name in (*each.modules, *(each.with_recovery if ours else ()))),
            *(["pytest"] if command.runs is Runs.MODULE and command.target == "pytest" else ()),
        ),
        compared=tuple(sorted(compared - sys.stdlib_module_names)),
        argv=tuple(map(os.fsencode, command.argv)),
        of_one=OF_ONE,
    )
