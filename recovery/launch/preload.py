"""What a job's template imports: the packages that its script names, and what this engine and a framework import only when they need it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from recovery.frameworks import Framework, forming_worlds, used
from recovery.launch.forkserver.fork_messages import Prepare
from recovery.launch.placement import OF_ONE, OF_ONE_WORLD, named_first
from recovery.launch.python_command import PythonCommand, Runs
from recovery.launch.python_command import parse_python_command as read_command
from recovery.launch.script_imports import Reading, parse_script

_ENGINE = (
    "recovery.training.run",
    "recovery.training.callbacks",
    "recovery.store.repository",
    "recovery.store.writer",
    "recovery.store.reader",
    "aiohttp",
    "encodings.idna",
    "watchdog.observers",
)
"""What a script that imports `recovery` needs of it sooner or later."""
_PROXY = "recovery.launch.worker_proxy"
_OF_THE_PROXY = ("psutil", *(framework.program_world for framework in forming_worlds().values()))
_ITS_OWN = ("__future__", "__main__")


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
    program = read_command(of_program)
    reading = parse_script(of_program[1:], directory)
    reason = _why_spawned(framework, command, program, reading)
    proxy = proxies_only()
    if program is None or reason:
        return msgspec.structs.replace(proxy, programs=True, refusal=reason)
    script = _of_script(program, reading)
    return msgspec.structs.replace(
        script,
        modules=tuple(dict.fromkeys((*script.modules, *proxy.modules))),
        of_one=(*OF_ONE, *OF_ONE_WORLD),
        programs=True,
    )


def proxies_only() -> Prepare:
    """Say what the template of worker proxies imports whose programs are spawned."""
    return Prepare(modules=(*_ENGINE, *_OF_THE_PROXY), of_one=OF_ONE)


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
    # The script's own come first, as in a process of its own.
    named = [name for name in reading.modules if name.partition(".")[0] not in _ITS_OWN]
    wanted = [
        *named,
        *(_ENGINE if ours else ()),
        *(module for framework in frameworks for module in framework.modules),
        *(module for framework in frameworks if ours for module in framework.with_recovery),
        *(["pytest"] if command.runs is Runs.MODULE and command.target == "pytest" else ()),
    ]
    packages = {
        *(name.partition(".")[0] for name in named),
        *(["recovery"] if ours else ()),
        *(framework.name for framework in frameworks),
    }
    return Prepare(
        modules=tuple(dict.fromkeys(wanted)),
        compared=tuple(sorted(packages - sys.stdlib_module_names)),
        of_one=OF_ONE,
    )
