"""Where the program of a forked process first imports a package that its template has imported: did the two find the same?

Until then the package is not in `sys.modules`, as in a process of its own. A program may change the environment, the search path or an
import hook before an import: the template knew nothing of that. Then the process becomes, by exec, what it would have been without one;
so it keeps its id, its parent and its log.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import itertools
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, NoReturn

import msgspec
from typing_extensions import override

from recovery import log, process_conditions
from recovery.launch.forkserver.fork_messages import Fork
from recovery.worker import exec_in_place

_dlopen: Any = ctypes._dlopen  # type: ignore[attr-defined] # noqa: SLF001 - what every class of ctypes calls; no public name is called by all
_OF_PYTEST, _PYTESTS_OWN = "_pytest.assertion.rewrite", "PYTEST_"
"""What pytest sets before it imports a script: a finder that rewrites tests and plugins, and variables."""


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What the template's imports did and found, which those of a process of its own would have done and found themselves."""

    compared: frozenset[str]
    """Packages that the script names."""
    uses: Mapping[str, frozenset[str]]
    """By package: those that it imports when the script's names are."""
    names: frozenset[str]
    """Top-level modules that were looked for, and those that are loaded."""
    unused: frozenset[str]
    """Of these, those that are there and were not imported: a program may import them itself."""
    path: tuple[str, ...]
    """`sys.path`."""
    variables: Mapping[bytes, tuple[bytes | None, bytes]]
    """Of the environment, what they have set: before and after; None: not set."""
    generators: tuple[Any, ...]
    """Random ones, seeded from the system."""


class FirstImports(MetaPathFinder):
    """Of one forked process: finds the packages that wait to be imported."""

    def __init__(self, request: Fork, launcher: int, imported: Imported) -> None:
        """Note it; nothing is compared before `begin`.

        Args:
            request: as what the process was begun.
            launcher: process id of its parent.
            imported: what its template has imported.
        """
        self._request, self._launcher, self._imported = request, launcher, imported
        self._variables = dict(imported.variables)
        self._waiting: dict[str, ModuleType] = {}
        self._loaded_for_all: set[str] = set()
        """Libraries in which those of an import find their names."""

    def begin(self) -> None:
        """Right before the program: it has changed nothing yet, only its own directory may hide a module."""
        names = [name for name in sys.modules if name.partition(".")[0] in self._imported.compared]
        self._waiting = {name: sys.modules.pop(name) for name in names}
        sys.meta_path.insert(0, self)
        ctypes._dlopen = self._load  # type: ignore[attr-defined] # noqa: SLF001 - what every class of ctypes calls
        self._pid, self._found = os.getpid(), self._state()
        self._compare("the program")

    @override
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        module = self._waiting.get(name)
        if module is None:
            return None
        spec = copy.copy(getattr(module, "__spec__", None) or ModuleSpec(name, None))
        spec.loader = _Loader(self, name, module)
        return spec

    def bring_back(self, name: str, module: ModuleType) -> None:
        """A module that waits is imported: it comes back with its package, and with those that this one uses."""
        package, sys.modules[name] = name.partition(".")[0], module
        # What this process has forked goes on as it is.
        if os.getpid() == self._pid:
            self._compare(package)
        while self._variables:
            variable, (before, after) = self._variables.popitem()
            if os.environb.get(variable) == before:  # noqa: TID251 - handed on, not read
                os.environb[variable] = after  # noqa: TID251 - as above
        coming, pending = set[str](), {package}
        while pending:
            coming |= pending
            pending = set[str]().union(*(self._imported.uses.get(each, ()) for each in pending)) - coming
        for each, waiting in list(self._waiting.items()):
            if each.partition(".")[0] in coming:
                sys.modules[each] = waiting
                # Another thread may bring it back as well.
                self._waiting.pop(each, None)
        if not self._waiting:
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            ctypes._dlopen = _dlopen  # type: ignore[attr-defined] # noqa: SLF001 - given back, as it is above
        self._found = self._state()

    def _load(self, name: Any, mode: int = ctypes.DEFAULT_MODE) -> Any:
        handle = _dlopen(name, mode)
        if mode & ctypes.RTLD_GLOBAL and name is not None:
            self._loaded_for_all.add(os.fsdecode(name))
        return handle

    def start_again(self) -> NoReturn:
        """Become, by exec, what was to be begun, from whichever thread this is."""
        process_conditions.restore(self._request.conditions)
        process_conditions.tie_to(self._launcher)
        exec_in_place.close_all_at_exec()
        os.execve(sys.executable, self._request.command, self._request.environment)  # noqa: S606 - the command of the person who started the job

    def _compare(self, package: str) -> None:
        difference = next(self._differences(), "")
        if not difference:
            return
        # The engine has begun, or what else the program runs beside itself: too late for another start.
        is_late = threading.active_count() > 1
        event = "event=import_differs" if is_late else "event=fork_given_up"
        reason = log.quoted(f"{difference}, seen where {package} is imported")
        # Where the disk is full, the program goes on.
        with contextlib.suppress(OSError):
            os.write(2, f"{event} reason={reason}\n".encode(errors="replace"))
        if not is_late:
            self.start_again()

    def _differences(self) -> Iterator[str]:
        for what, present in self._state().items():
            if changed := present ^ self._found[what]:
                which = ", ".join(sorted({each.partition("=")[0] for each in changed}))
                yield f"{what} ({which}) is not what the template had"
        rest, added = iter(sys.path), list(sys.path)
        if not all(place in rest for place in self._imported.path):
            yield "sys.path is not what the template had"
            return
        for place in self._imported.path:
            added.remove(place)
        for file in itertools.chain(*map(self._hiding, added)):
            yield f"{file} has the name of a module that the template has looked for elsewhere"

    def _hiding(self, directory: str) -> Iterator[str]:
        """Modules there, which would be found first; not those that were. Nothing where it cannot be looked at.

        A directory without a file of a package is one where nothing else is found.
        """
        with contextlib.suppress(OSError):
            entries = {entry.partition(".")[0] for entry in os.listdir(directory or os.curdir)}  # noqa: PTH208 - names
            for name in sorted(entries & self._imported.names):
                spec = PathFinder.find_spec(name, [directory])
                loaded = getattr(sys.modules.get(name) or self._waiting.get(name), "__file__", None) or ""
                if spec and spec.origin and os.path.realpath(spec.origin) != os.path.realpath(loaded):
                    yield spec.origin
                if spec and not (spec.origin or loaded or PathFinder.find_spec(name, self._imported.path)):
                    yield os.path.join(directory, name)  # noqa: PTH118 - as above

    def _state(self) -> dict[str, set[str]]:
        """What a program may change, and an import may look at."""
        finders = (each for each in sys.meta_path if type(each).__module__ != _OF_PYTEST)
        return {
            "the environment": _environment(),
            "sys.argv": {str(sys.argv[1:])},
            "sys.meta_path": {f"{type(finder).__name__}={id(finder)}" for finder in finders},
            "sys.path_hooks": {f"{hook.__name__}={id(hook)}" for hook in sys.path_hooks},
            "sys.modules": {
                f"{name}={id(sys.modules.get(name, self._waiting.get(name)))}"
                for name in self._imported.names - self._imported.unused
            },
            "the set of processors": {str(os.sched_getaffinity(0))},
            "sys.getdlopenflags()": {str(sys.getdlopenflags())},
            "what ctypes has loaded with RTLD_GLOBAL": {*self._loaded_for_all},
        }


class _Loader(Loader):
    """Of a module that is loaded; who asks for its code or data, and does not import it, gets what its own loader says."""

    def __init__(self, first: FirstImports, name: str, loaded: ModuleType) -> None:
        self._first, self._name, self._loaded = first, name, loaded
        self._spec, self._own = getattr(loaded, "__spec__", None), getattr(loaded, "__loader__", None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._loaded

    @override
    def exec_module(self, module: ModuleType) -> None:
        # A package may have put something else than a module in its place.
        with contextlib.suppress(AttributeError):
            module.__spec__, module.__loader__ = self._spec, self._own
        self._first.bring_back(self._name, module)


def _environment() -> set[str]:
    """As C has it: `os.environ` does not show what `os.putenv` or a library has set."""
    variables = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    entries = itertools.takewhile(lambda entry: entry is not None, (variables[n] for n in itertools.count()))
    return {entry for entry in map(os.fsdecode, entries) if not entry.startswith(_PYTESTS_OWN)}
