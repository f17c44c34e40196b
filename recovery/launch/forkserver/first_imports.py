"""Where the program of a forked process first imports a package that its template has imported: did the two find the same?

A script, or a module beside it, may change the environment, the search path or an import hook before an import: the template knew nothing
of that. Then the process becomes, by exec, what it would have been without a template; so it keeps its id, its parent and its log.

An import asks a loaded module for its `__spec__`, in each of its forms (as importlib.util.LazyLoader uses it). So the modules of these
packages have a class that waits for that question; once it was asked, each that comes with the import has its own class again.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import sys
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import msgspec

from recovery import log, process_conditions
from recovery.launch.forkserver.fork_messages import Fork
from recovery.worker import exec_in_place

_STDOUT, _STDERR = 1, 2
_OF_PYTEST, _PYTESTS_OWN = "_pytest.assertion.rewrite", b"PYTEST_"
"""What pytest sets before it imports a script: a finder that rewrites tests and plugins, and variables."""
_EXTENSIONS = (".py", ".so")


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What the template's imports did and found, which those of a process of its own would have done and found themselves."""

    names: frozenset[str]
    """Top-level modules that were looked for, and those that are loaded."""
    uses: Mapping[str, frozenset[str]]
    """By module: those that come with it, none of them of the standard library."""
    path: tuple[str, ...]
    """`sys.path`."""
    variables: Mapping[bytes, tuple[bytes | None, bytes | None]]
    """Of the environment: before and after; None: not set."""
    conditions: Mapping[str, Any]
    """Of the process (recovery.process_conditions): what they have made of those that they have changed."""
    printed: bytes
    generators: tuple[Any, ...]
    """Random ones, seeded from the system."""

    def nothing_done(self) -> Imported:
        """Gives the same without what others can see: for a process that would not have imported them."""
        return msgspec.structs.replace(self, variables={}, conditions={}, printed=b"")


class FirstImports:
    """Of one forked process."""

    def __init__(self, request: Fork, launcher: int, imported: Imported) -> None:
        """Note it; nothing is compared before `begin`.

        Args:
            request: as what it was begun.
            launcher: process id of its parent.
            imported: what its template has imported.
        """
        self._request, self._launcher, self._imported = request, launcher, imported
        self._found: dict[str, Any] = {}
        self._pid = 0
        self._compared: set[str] = set()
        self._reached: set[str] = set()

    def begin(self) -> None:
        """Right before the program: it has changed nothing yet, only its own directory may hide a module."""
        self._pid, self._found = os.getpid(), self._state()
        _of_process[:] = [self]
        self._compare("the program")

    def compare(self, module: str) -> None:
        """A loaded module is imported that nothing has imported before.

        Args:
            module: its name.
        """
        package = module.partition(".")[0]
        # What this process has forked goes on as it is.
        if package not in self._compared and os.getpid() == self._pid:
            self._compare(package)
            self._as_imported()
        pending = {module} - self._reached
        while pending:
            self._reached |= pending
            waited = [name for name in pending if name in _waiting]
            self._compared.update(name.partition(".")[0] for name in waited)
            for name in waited:
                _set_class(*_waiting.pop(name))
            used = (self._imported.uses.get(name, ()) for name in pending)
            pending = set().union(*used) - self._reached

    def start_again(self) -> NoReturn:
        """Become, by exec, what was to be begun, from whichever thread this is."""
        process_conditions.restore(self._request.conditions)
        process_conditions.tie_to(self._launcher)
        exec_in_place.close_all_at_exec()
        os.execve(sys.executable, self._request.command, self._request.environment)  # noqa: S606 - the command of the person who started the job

    def _as_imported(self) -> None:
        """What the imports have done besides, once."""
        done, self._imported = self._imported, self._imported.nothing_done()
        for variable, (before, after) in done.variables.items():
            if os.environb.get(variable) == before:  # noqa: TID251 - handed on, not read
                if after is None:
                    del os.environb[variable]  # noqa: TID251 - as above
                else:
                    os.environb[variable] = after  # noqa: TID251 - as above
        _write(_STDOUT, done.printed)
        self._found = self._state()

    def _compare(self, package: str) -> None:
        difference = next(self._differences(), "")
        if not difference:
            return
        # The engine has begun, or what else the program runs beside itself: too late for another start.
        is_late = threading.active_count() > 1
        event = "event=import_differs" if is_late else "event=fork_given_up"
        reason = log.quoted(f"{difference}, seen where {package} is imported")
        _write(_STDERR, f"{event} reason={reason}\n".encode(errors="replace"))
        if not is_late:
            self.start_again()

    def _differences(self) -> Iterator[str]:
        present = self._state()
        for what, value in self._found.items():
            now = present[what]
            if now != value:
                keys = (
                    {key for key in {**value, **now} if value.get(key) != now.get(key)}
                    if isinstance(value, dict)
                    else ()
                )
                which = f" ({', '.join(sorted(map(os.fsdecode, keys)))})" if keys else ""
                yield f"{what}{which} is not what the template had"
        added = _added(sys.path, self._imported.path)
        if added is None:
            yield "sys.path is not what the template had"
        for place in added or ():
            for file in _hiding(place, self._imported.names):
                yield f"{file} has the name of a module that the template has looked for elsewhere"

    def _state(self) -> dict[str, Any]:
        """What a program may change, and an import may look at."""
        found = {
            "the environment": _environment(),
            "sys.meta_path": [each for each in sys.meta_path if type(each).__module__ != _OF_PYTEST],
            "sys.path_hooks": list(sys.path_hooks),
            "sys.modules": {name: id(sys.modules.get(name)) for name in self._imported.names},
            "the set of processors": os.sched_getaffinity(0),
            "sys.getdlopenflags()": sys.getdlopenflags(),
        }
        return {**found, "warnings.filters": list(warnings.filters)} if self._imported.printed else found


_of_process: list[FirstImports] = []
"""At most one, whose program runs."""
_waiting: dict[str, tuple[ModuleType, type[ModuleType]]] = {}
"""Modules that wait to be imported, with the class of each."""


def wait_for(packages: Collection[str]) -> None:
    """Let the loaded modules of these packages wait to be imported."""
    classes: dict[type[ModuleType], type[ModuleType]] = {}
    names: dict[int, str] = {}
    modules: dict[str, Any] = {**sys.modules}
    for name, module in modules.items():
        own = type(module)
        if name.partition(".")[0] in packages and issubclass(own, ModuleType) and id(module) not in names:
            # A class that cannot be exchanged is rare, and its package has other modules.
            with contextlib.suppress(TypeError):
                _set_class(module, classes.setdefault(own, _waiting_class(own, names)))
                _waiting[name], names[id(module)] = (module, own), name


def _waiting_class(own: type[ModuleType], names: Mapping[int, str]) -> type[ModuleType]:
    def find(module: ModuleType, name: str) -> Any:
        if name == "__spec__" and _of_process:
            _of_process[0].compare(names[id(module)])
        return own.__getattribute__(module, name)

    return type(own.__name__, (own,), {"__getattribute__": find, "__module__": own.__module__})


def _set_class(module: ModuleType, chosen: type[ModuleType]) -> None:
    """Past a `__setattr__` of its own: that of torch's configurations takes options only."""
    object.__setattr__(module, "__class__", chosen)


def _write(descriptor: int, text: bytes) -> None:
    """Where the disk is full, the program goes on."""
    with contextlib.suppress(OSError):
        os.write(descriptor, text)


def _environment() -> dict[bytes, bytes]:
    """As C has it: `os.environ` does not show what `os.putenv` or a library has set."""
    variables = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    entries = itertools.takewhile(lambda entry: entry is not None, (variables[n] for n in itertools.count()))
    return {
        name: value
        for name, _, value in (entry.partition(b"=") for entry in entries)
        if not name.startswith(_PYTESTS_OWN)
    }


def _added(path: Sequence[str], before: Sequence[str]) -> list[str] | None:
    """What has come into a search path; None: something has left it, or its order is another one."""
    rest, added = list(before), []
    for place in path:
        if rest and place == rest[0]:
            del rest[0]
        else:
            added.append(place)
    return None if rest else added


def _hiding(directory: str, names: Collection[str]) -> Iterator[str]:
    """Files of modules of these names there, which would be found first; not those that were."""
    try:
        entries = sorted(os.listdir(directory))  # noqa: PTH208 - also of each directory that cannot be looked at
    except OSError:
        return
    for entry in entries:
        name = entry.partition(".")[0]
        if name not in names:
            continue
        file = (
            Path(directory, entry) if entry.endswith(_EXTENSIONS) else Path(directory, entry, "__init__.py")
        )
        loaded = getattr(sys.modules.get(name), "__file__", None) or ""
        # Path.is_file raises where the directory is somebody else's.
        if os.path.isfile(file) and os.path.realpath(file) != os.path.realpath(loaded):  # noqa: PTH113 - see above
            yield str(file)
