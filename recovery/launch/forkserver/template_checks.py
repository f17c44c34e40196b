"""What a template's imports have done: what makes it unsafe to fork, what its forks must make up for, and what makes it stale.

A difference of environment, search path and interpreter flags each fork finds by itself, where its script imports (first_imports.py). Here is
what it could not find there: what the imports have kept of the process in which they ran.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random  # noqa: TID251 - whose states others have made
import sys
import sysconfig
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from typing_extensions import override

from recovery import process_conditions
from recovery.frameworks import FRAMEWORKS, used
from recovery.launch.forkserver.first_imports import Imported
from recovery.launch.forkserver.fork_messages import Prepare

_READ_AGAIN = {name for framework in FRAMEWORKS for name in framework.read_again}
_LOADED_WITHOUT_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""What libraries read where they are loaded, and what keeps them from a thread, which no fork would have: Arrow's allocator frees memory by one
(https://jemalloc.net, `background_thread`), else by who allocates next. It comes with pyarrow, so with datasets and pandas."""


class _Notes(MetaPathFinder):
    """While the imports run. As the first finder it is asked for whatever is looked for."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.variables: set[str] = set()
        """Of the environment, that were asked for."""
        self.generators: dict[int, random.Random] = {}
        """Seeded from the system, so that each worker's would be another."""

    @override
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None, /) -> None:
        self.names.add(name)


def import_all(request: Prepare, own: int) -> Imported | str:
    """Import every module that there is. Gives what that did besides, or why no process may be forked from this one.

    Args:
        request: what to import, and for whom.
        own: the one descriptor that this process may have besides stdin, stdout and stderr.
    """
    sys.argv[:] = map(os.fsdecode, request.argv)
    for variable in request.of_one:
        os.environ.pop(variable, None)  # noqa: TID251 - each process has another one
    conditions, path, old = process_conditions.note(), [*sys.path], {**os.environb}  # noqa: TID251 - to see what an import sets
    with _without_threads(), _noted() as notes:
        uses: defaultdict[str, frozenset[str]] = defaultdict(frozenset)
        reason = _import_each(request.modules, uses) or _import_each(request.besides, defaultdict(frozenset))
    new = {**os.environb}  # noqa: TID251 - as above
    changed = [
        *(difference.text for difference in process_conditions.differing(conditions)),
        *(["sys.path"] if sys.path[: len(path)] != path else []),
        *sorted(map(os.fsdecode, old.keys() - new.keys())),
    ]
    if reason := reason or next(_reasons(notes, changed, own, request), ""):
        return reason
    loaded, asked = _packages(sys.modules), _packages(notes.names)
    return Imported(
        compared=frozenset(request.compared),
        uses=uses,
        names=(loaded | asked).difference(("__main__",), sys.builtin_module_names),
        unused=frozenset(name for name in asked - loaded if PathFinder.find_spec(name)),
        path=tuple(sys.path),
        variables={name: (old.get(name), value) for name, value in new.items() if old.get(name) != value},
        generators=tuple(notes.generators.values()),
    )


@contextlib.contextmanager
def _without_threads() -> Iterator[None]:
    """For C alone, and for as long as this lasts: no program is to find it in its environment. What the user has set stays."""
    chosen = {name: value for name, value in _LOADED_WITHOUT_THREADS.items() if name not in os.environ}  # noqa: TID251 - as above
    for name, value in chosen.items():
        os.putenv(name, value)
    try:
        yield
    finally:
        for name in chosen:
            os.unsetenv(name)


@contextlib.contextmanager
def _noted() -> Iterator[_Notes]:
    """Note it for as long as this lasts."""
    notes = _Notes()
    seed, environment = random.Random.seed, type(os.environ)  # noqa: TID251 - to see what imports ask for

    def noting_seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        notes.generators.pop(id(self), None)
        notes.generators.update({id(self): self} if a is None else {})
        seed(self, a, version)

    class Noting(environment):  # type: ignore[misc,valid-type] # the one of `os` has no name
        def __getitem__(self, name: str) -> Any:
            if _asking_module() not in _READ_AGAIN:
                notes.variables.add(name)
            return super().__getitem__(name)

    sys.meta_path.insert(0, notes)
    patched: Any = (random.Random, os.environ)  # noqa: TID251 - as above
    patched[0].seed, patched[1].__class__ = noting_seed, Noting
    try:
        yield notes
    finally:
        patched[0].seed, patched[1].__class__ = seed, environment
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not notes]


def _asking_module() -> str:
    frame = sys._getframe(2)  # noqa: SLF001 - no other way to it
    while frame.f_back and frame.f_globals.get("__name__") in ("os", "collections.abc"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


def _packages(modules: Iterable[str]) -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name in modules)


def _import_each(modules: Iterable[str], uses: defaultdict[str, frozenset[str]]) -> str:
    """Import them; note by package which others were loaded with it. Gives why that failed."""
    for name in modules:
        package, _, last = name.rpartition(".")
        before = {*sys.modules}
        try:
            # As `from package import name` does: what a package has under that name already hides a module of that name.
            if not package or not hasattr(importlib.import_module(package), last):
                importlib.import_module(name)
        except ImportError:
            # A script that imports it gets the same error, and may be prepared for it.
            pass
        except BaseException as error:  # noqa: BLE001 - the reason, whatever an import does
            return f"importing {name} ended with {type(error).__name__}: {error}"
        uses[name.partition(".")[0]] |= _packages(sys.modules.keys() - before)
    return ""


def _reasons(notes: _Notes, changed: Iterable[str], own: int, request: Prepare) -> Iterator[str]:
    """Why no process can be forked. In this order: one that can ends the threads of its libraries before a fork (OpenBLAS does)."""
    looked_at = (name for name in request.of_one if name in notes.variables)
    yield from (f"the imports look at {name}, in which the workers differ" for name in looked_at)
    if tempfile._name_sequence is not None:  # type: ignore[attr-defined] # noqa: SLF001 - all temporary names come from it
        yield "the imports have made a temporary file or directory, which one worker would remove for all"
    if _has_numpys_generators():
        yield "the imports have made a random generator of numpy's"
    if _is_refusing_forks():
        yield "the imports have used a device, which a forked process cannot"
    threads = set(os.listdir("/proc/self/task")) - {str(os.getpid())}  # noqa: PTH208 - names are numbers here
    if threads:
        known = {str(thread.native_id): thread.name for thread in threading.enumerate()}
        named = ", ".join(known.get(thread, f"of a library, id {thread}") for thread in threads)
        yield f"the imports have started {len(threads)} threads ({named})"
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    if children.exists() and children.read_text(encoding="utf-8").strip():
        yield "the imports have started a process"
    yield from (f"the imports have left open: {target}" for target in _opened(own))
    yield from (f"the imports have changed: {what}" for what in changed)
    for framework in used(sys.modules):
        for variable in framework.read_at_import.keys() & os.environ.keys():  # noqa: TID251 - the framework reads it there
            yield f"{framework.title} {framework.read_at_import[variable]} when it is imported ({variable})"


def _opened(own: int) -> Iterator[str]:
    for name in sorted(os.listdir("/proc/self/fd")):  # noqa: PTH208 - as above
        # The descriptor of the listing itself is gone.
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115 - may be no path
            if int(name) not in (0, 1, 2, own):
                yield target


def _has_numpys_generators() -> bool:
    """All but the one behind `numpy.random.seed`, which is seeded again."""
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is None:
        return False
    own = numpy_random.mtrand._rand  # noqa: SLF001 - numpy has no other name for it
    kinds, known = (numpy_random.BitGenerator, numpy_random.RandomState), (own, own._bit_generator)  # noqa: SLF001 - as above
    # By its type: an object may run code of its own when it is asked for its class.
    return any(issubclass(type(each), kinds) and each not in known for each in gc.get_objects())


def _is_refusing_forks() -> bool:
    """Could a forked process not use its device? One tells; what cannot say is not trusted."""
    rows = [row for framework in FRAMEWORKS for row in framework.devices.items()]
    asked = [getattr(sys.modules.get(module), name, bool) for module, names in rows for name in names]
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = int(any(ask() for ask in asked))
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] != 0


Files = Mapping[str, "tuple[int, int, int] | None"]
"""By path, what tells one state of it from another; None: it is not there."""


def loaded_files() -> Files:
    """What the loaded modules came from: their files, and of installed packages the directories that an installation changes."""
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    within = tuple(f"{place}{os.sep}" for place in installed)
    files = {str(getattr(module, "__file__", "")) for module in [*sys.modules.values()]}
    paths = (*installed, *(file for file in files if not file.startswith(within)))
    return {path: _state_of(path) for path in paths}


def changed_of(files: Files) -> str:
    """Say which is not what it was; empty: none."""
    return next((f"{path} has changed" for path, state in files.items() if _state_of(path) != state), "")


def _state_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - while a process waits
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
