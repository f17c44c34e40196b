"""What a job's template imports: the packages that its script names, and what this engine and a framework import only when they need it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from recovery.launch.fork_messages import Prepare
from recovery.launch.placement import OF_ONE
from recovery.launch.python_command import PythonCommand, Runs
from recovery.launch.script import Reading, read

_FOR_PACKAGES = (
    (
        {"recovery"},
        (
            "recovery.training.run",
            "recovery.training.callbacks",
            "recovery.store.repository",
            "recovery.store.writer",
            "recovery.store.reader",
            "aiohttp",
            "encodings.idna",
            "watchdog.observers",
        ),
    ),
    # The first optimizer imports torch._dynamo, the first world torch.distributed, the first save the rest.
    (
        {"torch"},
        (
            "torch",
            "torch._dynamo",
            "torch.distributed",
            "torch.nn.parallel.distributed",
            "torch.optim",
            "torch.utils.data",
            "torch.utils.serialization",
        ),
    ),
    ({"recovery", "torch"}, ("recovery.torch",)),
    (
        {"recovery", "mindspore"},
        ("recovery.mindspore.world", "recovery.mindspore.model", "recovery.mindspore.state"),
    ),
)
"""What goes with packages that a script names. Compared with what is loaded when a small job has ended (torch 2.13): what is missing
costs less than a millisecond."""
_PROXY = "recovery.launch.supervise"
_OF_THE_PROXY = ("psutil", "recovery.mindspore.control_plane")
_ITS_OWN = ("__future__", "__main__")


def prepare_for(command: PythonCommand, words: Sequence[str], directory: Path) -> Prepare:
    """Say what the template of a worker imports.

    Args:
        command: of the worker.
        words: the same, behind the interpreter.
        directory: where it is started.
    """
    if command.target == _PROXY:
        # The program behind it is a process of its own.
        return Prepare(
            modules=(*_going_with({"recovery"}), *_OF_THE_PROXY), shadows=(str(directory),), of_one=OF_ONE
        )
    reading = read(words, directory)
    # The script's own come first, as in a process of its own.
    wanted = [name for name in reading.modules if name.partition(".")[0] not in _ITS_OWN]
    wanted += _going_with(reading.packages)
    by_pytest = command.runs is Runs.MODULE and command.target == "pytest"
    if by_pytest:
        wanted.append("pytest")
    return Prepare(
        modules=tuple(dict.fromkeys(wanted)),
        shadows=tuple(sorted(_before_all_others(command, reading, directory))),
        watched=tuple(str(path) for path in reading.files),
        pytest=by_pytest,
        acts=reading.acts,
        of_one=OF_ONE,
    )


def _going_with(packages: Collection[str]) -> list[str]:
    return [module for needed, modules in _FOR_PACKAGES if needed <= set(packages) for module in modules]


def _before_all_others(command: PythonCommand, reading: Reading, directory: Path) -> set[str]:
    """Directories that the program searches first for a module."""
    if command.runs is Runs.SCRIPT:
        return {str((directory / command.target).resolve().parent)}
    # pytest puts the directories of test files there as well.
    return {str(directory), *(str(path.resolve().parent) for path in reading.entry_points)}
