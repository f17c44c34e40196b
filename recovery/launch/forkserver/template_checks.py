"""What makes a template unsafe to fork, or stale: looked at in the template process itself."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from random import Random  # noqa: TID251 - whose states others have made
from types import ModuleType

from recovery import process_conditions
from recovery.frameworks import FRAMEWORKS, used
from recovery.launch.forkserver import forked_child
from recovery.launch.forkserver.fork_messages import Prepare
from recovery.launch.forkserver.import_inputs import looked_up
from recovery.launch.forkserver.template_side_effects import made

_PRINTED_MAX = 1 << 20
_STANDARD = (0, 1, 2)
_INSTALLED = tuple(
    f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
"""Where files lie that belong to the interpreter, or were installed for it."""


def import_all(request: Prepare) -> tuple[str, list[Random]]:
    """Import every module that there is.

    Gives why that makes the template unsafe (empty: it does not), and the random generators that each forked process seeds again.
    """
    with looked_up() as looked, made() as new:
        reason = request.acts or _import_each(request.modules) or looked.what_differs(request)
        return reason or new.what_is_shared(), new.generators


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


class StateBeforeImports:
    """This process before its imports, to see what they have done besides."""

    def __init__(self) -> None:
        """Look."""
        self._directory = os.getcwd()  # noqa: PTH109 - the text is compared
        self._path = list(sys.path)
        self._environment = dict(os.environb)  # noqa: TID251 - to see what an import sets
        self._conditions = process_conditions.note()

    def imported(self, generators: Sequence[Random]) -> forked_child.Imported:
        """Say what the imports have done that every forked process has to do again.

        Args:
            generators: that it seeds again.
        """
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        before, after = self._environment, dict(os.environb)  # noqa: TID251 - as above
        return forked_child.Imported(
            variables={
                name: (before.get(name), after.get(name))
                for name in sorted({*before, *after})
                if before.get(name) != after.get(name)
            },
            # Which processors it may use, its launcher says of each.
            conditions={
                difference.name: difference.present
                for difference in process_conditions.differing(self._conditions)
                if difference.name != "processors"
            },
            printed=_printed(),
            generators=tuple(generators),
        )

    def difference(self, own: int, request: Prepare) -> str:
        """Say what no forked process may share, or what it would miss; empty: nothing.

        Args:
            own: the one descriptor that this process may have besides stdin, stdout and stderr.
            request: what was imported, and for whom.
        """
        return next((reason for reason in self._reasons(own, request) if reason), "")

    def _reasons(self, own: int, request: Prepare) -> Iterator[str]:
        """In this order: one that can be forked ends the threads of its libraries before a fork (OpenBLAS does), so one comes first."""
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
        if os.getcwd() != self._directory:  # noqa: PTH109 - as above
            yield "the imports have changed the working directory"
        if sys.path[: len(self._path)] != self._path:
            yield "the imports have put something before the module search path"
        yield from _read_at_import()
        if request.pytest:
            rewritten = sorted(_rewritten_by_pytest() & sys.modules.keys())
            if rewritten:
                yield f"pytest has to import {', '.join(rewritten)} itself, and the imports have done so before"
        yield shadowed(request.shadows)


class Files:
    """The files behind the loaded modules, and further ones.

    Those of installed packages are thousands: to look at all takes 9 ms, in which a whole job would wait for the process that is to
    begin. So they are looked at while nobody waits, and all others each time.
    """

    def __init__(self, request: Prepare) -> None:
        """Note them as they are.

        Args:
            request: names the further ones.
        """
        self._shadows = request.shadows
        files = sorted({file for module in list(sys.modules.values()) if (file := _file_of(module))})
        self._installed = {file: _state_of(file) for file in files if file.startswith(_INSTALLED)}
        others = (*request.watched, *(file for file in files if file not in self._installed))
        self._others = {file: _state_of(file) for file in others}
        self._changed = ""
        """Which of the installed packages' files was seen to have changed; empty: none."""

    def look_at_installed(self) -> None:
        """Notice what has changed in the installed packages. For when nobody waits."""
        self._changed = self._changed or _differing(self._installed)

    def changed(self) -> str:
        """Say which is not what it was; empty: none. Of the installed packages what was noticed when they were looked at last."""
        changed = _differing(self._others) or self._changed
        return f"{changed} has changed" if changed else shadowed(self._shadows)


def _differing(noted: Mapping[str, tuple[int, int, int] | None]) -> str:
    return next((file for file, state in noted.items() if _state_of(file) != state), "")


def shadowed(directories: Iterable[str]) -> str:
    """Say which loaded module would come from one of the directories in a process of its own; empty: none."""
    loaded = {name.partition(".")[0] for name in sys.modules} - set(sys.builtin_module_names) - {"__main__"}
    for directory in directories:
        for name, path in _modules_in(directory):
            if name in loaded and not _is_file_of(sys.modules.get(name), path):
                return f"{path} has the name of a module that is imported already"
    return ""


def _modules_in(directory: str) -> Iterator[tuple[str, Path]]:
    try:
        entries = sorted(Path(directory).iterdir())
    except OSError:
        return
    for entry in entries:
        name = entry.name.partition(".")[0]
        if entry.suffix in (".py", ".so") and entry.is_file():
            yield name, entry
        elif (entry / "__init__.py").is_file():
            yield name, entry / "__init__.py"


def _is_file_of(module: ModuleType | None, path: Path) -> bool:
    file = _file_of(module)
    try:
        return bool(file) and path.samefile(file)
    except OSError:
        return False


def _file_of(module: ModuleType | None) -> str:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else ""


def _state_of(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - thousands of them, while a process waits
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read_at_import() -> Iterator[str]:
    for framework in used(sys.modules):
        for variable, does in framework.read_at_import.items():
            if variable in os.environ:  # noqa: TID251 - the framework reads it there
                yield f"{framework.title} {does} when it is imported ({variable})"


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


def _rewritten_by_pytest() -> set[str]:
    """Top-level modules of the distributions that have a plugin of pytest."""
    return {
        file.parts[0].removesuffix(".py")
        for distribution in metadata.distributions()
        if any(point.group == "pytest11" for point in distribution.entry_points)
        for file in distribution.files or ()
        if file.suffix == ".py"
    }
