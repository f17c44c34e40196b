"""What makes a template unsafe to fork, or stale: looked at in the template process itself."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from recovery import process_conditions
from recovery.frameworks import FRAMEWORKS, used
from recovery.launch.forkserver import import_notes
from recovery.launch.forkserver.first_imports import Imported
from recovery.launch.forkserver.fork_messages import Prepare
from recovery.launch.forkserver.import_notes import ImportNotes

_PRINTED_MAX = 1 << 20
_STANDARD = (0, 1, 2)
_INSTALLED = tuple(
    f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
"""Where files lie that belong to the interpreter, or were installed for it."""


def import_all(request: Prepare, own: int) -> Imported | str:
    """Import every module that there is. Gives what that did besides, or why no process may be forked from this one.

    Args:
        request: what to import, and for whom.
        own: the one descriptor that this process may have besides stdin, stdout and stderr.
    """
    for variable in request.of_one:
        os.environ.pop(variable, None)  # noqa: TID251 - each process has another one
    before = _state()
    with import_notes.noted() as notes:
        reason = _import_each(request.modules)
    return reason or next(_reasons(before, notes, own, request), "") or _imported(before, notes)


def _state() -> dict[str, Any]:
    return {
        "the working directory": os.getcwd(),  # noqa: PTH109 - the text is compared
        "path": tuple(sys.path),
        "environment": dict(os.environb),  # noqa: TID251 - to see what an import sets
        "conditions": process_conditions.note(),
    }


def _import_each(modules: Iterable[str]) -> str:
    for name in modules:
        try:
            _import(name)
        except ImportError:
            # A script that imports it gets the same error, and may be prepared for it.
            continue
        except BaseException as error:  # noqa: BLE001 - the reason, whatever an import does
            return f"importing {name} ended with {type(error).__name__}: {error}"
    return ""


def _import(name: str) -> None:
    """Import it as `from package import name` does: what a package has under that name already hides a module of that name."""
    package, _, last = name.rpartition(".")
    if package and hasattr(importlib.import_module(package), last):
        return
    importlib.import_module(name)


def _imported(before: Mapping[str, Any], notes: ImportNotes) -> Imported:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    old, new = before["environment"], dict(os.environb)  # noqa: TID251 - as above
    loaded = {name.partition(".")[0] for name in sys.modules} - {"__main__"}
    return Imported(
        names=frozenset(loaded | notes.names).difference(sys.builtin_module_names),
        uses={name: _coming_with(name, used) for name, used in notes.uses.items()},
        path=tuple(sys.path),
        variables={
            name: (old.get(name), new.get(name)) for name in {*old, *new} if old.get(name) != new.get(name)
        },
        # Which processors it may use, its launcher says of each.
        conditions={
            difference.name: difference.present
            for difference in process_conditions.differing(before["conditions"])
            if difference.name != "processors"
        },
        printed=_printed(),
        generators=tuple(notes.generators),
    )


def _coming_with(module: str, used: Iterable[str]) -> frozenset[str]:
    wanted = {module.rpartition(".")[0], *used} & sys.modules.keys()
    return frozenset(name for name in wanted if name.partition(".")[0] not in sys.stdlib_module_names)


def _reasons(before: Mapping[str, Any], notes: ImportNotes, own: int, request: Prepare) -> Iterator[str]:
    """In this order: one that can be forked ends the threads of its libraries before a fork (OpenBLAS does), so one comes first."""
    yield from notes.reasons(request.of_one)
    refusing = _refused_in_a_fork()
    if refusing:
        yield f"the imports have used a device ({refusing}), which a forked process cannot"
    threads = os.listdir("/proc/self/task")  # noqa: PTH208 - names are numbers here
    if len(threads) > 1:
        yield f"the imports have started {len(threads) - 1} threads ({_names_of(threads)})"
    children = Path(f"/proc/self/task/{threads[0]}/children")
    if children.exists() and children.read_text(encoding="ascii").strip():
        yield "the imports have started a process"
    open_files = _opened(own)
    if open_files:
        yield f"the imports have left open: {', '.join(open_files)}"
    if os.getcwd() != before["the working directory"]:  # noqa: PTH109 - as above
        yield "the imports have changed the working directory"
    if tuple(sys.path[: len(before["path"])]) != before["path"]:
        yield "the imports have put something before the module search path"
    for framework in used(sys.modules):
        for variable, does in framework.read_at_import.items():
            if variable in os.environ:  # noqa: TID251 - the framework reads it there
                yield f"{framework.title} {does} when it is imported ({variable})"


class Files:
    """The files behind the loaded modules.

    Those of installed packages are thousands: to look at all takes 9 ms, in which a whole job would wait for the process that is to
    begin. So they are looked at while nobody waits, and all others each time.
    """

    def __init__(self) -> None:
        """Note them as they are."""
        files = sorted({file for module in list(sys.modules.values()) if (file := _file_of(module))})
        self._installed = {file: _state_of(file) for file in files if file.startswith(_INSTALLED)}
        self._others = {file: _state_of(file) for file in files if file not in self._installed}
        self._changed = ""
        """Which of the installed packages' files was seen to have changed; empty: none."""

    def look_at_installed(self) -> None:
        """Notice what has changed in the installed packages. For when nobody waits."""
        self._changed = self._changed or _differing(self._installed)

    def changed(self) -> str:
        """Say which is not what it was; empty: none. Of the installed packages what was noticed when they were looked at last."""
        changed = _differing(self._others) or self._changed
        return f"{changed} has changed" if changed else ""


def _differing(noted: Mapping[str, tuple[int, int, int] | None]) -> str:
    return next((file for file, state in noted.items() if _state_of(file) != state), "")


def _file_of(module: ModuleType | None) -> str:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else ""


def _state_of(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - thousands of them, while a process waits
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _refused_in_a_fork() -> str:
    """The module whose device a forked process could not use; empty: none. A forked process tells."""
    devices = (each for framework in FRAMEWORKS for each in framework.devices.items())
    present = [(name, asked) for name, asked in devices if sys.modules.get(name) is not None]
    pid = os.fork()
    if pid == 0:
        refusing = [place for place, (name, asked) in enumerate(present, 1) if _is_refusing(name, asked)]
        os._exit(refusing[0] if refusing else 0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        return f"a forked process ended by signal {-code}"
    return present[code - 1][0] if code else ""


def _is_refusing(module: str, asked: Iterable[str]) -> bool:
    asks = (getattr(sys.modules[module], name, None) for name in asked)
    try:
        return any(ask() for ask in asks if ask is not None)
    except Exception:  # noqa: BLE001 - what cannot say is not trusted
        return True


def _names_of(threads: Iterable[str]) -> str:
    known = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    others = (thread for thread in threads if thread != str(os.getpid()))
    return ", ".join(known.get(thread, f"of a library, id {thread}") for thread in others)


def _printed() -> bytes:
    """What has come to stdout, which is stderr as well; nothing where it cannot be read again."""
    try:
        return os.pread(1, _PRINTED_MAX, 0)
    except OSError:
        return b""


def _opened(own: int) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - as above
        try:
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115 - may be no path
        except OSError:
            # The descriptor of the listing itself.
            continue
        if int(name) not in (*_STANDARD, own):
            found.append(target)
    return found
