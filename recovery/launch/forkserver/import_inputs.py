"""What the imports of a template look up that each worker's own imports would find otherwise: modules beside the script, variables."""

from __future__ import annotations

import contextlib
import importlib.abc
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from typing_extensions import override

from recovery.frameworks import FRAMEWORKS
from recovery.launch.forkserver.fork_messages import Prepare


class ImportLookups:
    """While the imports run."""

    def __init__(self) -> None:
        """Nothing is looked up yet."""
        self.modules: set[str] = set()
        """Top-level ones."""
        self.variables: set[str] = set()

    def what_differs(self, request: Prepare) -> str:
        """Say what a worker would have found, and this process did not; empty: nothing."""
        for directory in request.shadows:
            # What has come from elsewhere is looked at with all other modules that hide one.
            for name in sorted(self.modules - sys.modules.keys()):
                place = Path(directory, name)
                for path in (place.with_suffix(".py"), place / "__init__.py"):
                    if path.is_file():
                        return f"the imports look for {name}, which a worker finds beside the script ({path})"
        read = sorted(self.variables & set(request.of_one))
        return f"the imports look at {read[0]}, in which the workers differ" if read else ""


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing, and notes what is asked for."""

    def __init__(self, looked: ImportLookups) -> None:
        self._looked = looked

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if path is None:
            self._looked.modules.add(fullname)
        return None


class _Variables(dict[bytes, bytes]):
    """Of the environment; notes which are asked for."""

    looked: ImportLookups

    @override
    def __getitem__(self, name: bytes) -> bytes:
        asking = _asking_module()
        if asking not in _WALKS and asking not in _READ_AGAIN:
            self.looked.variables.add(os.fsdecode(name))
        return super().__getitem__(name)


_WALKS = frozenset({"tqdm.utils"})
"""Modules that walk through the whole environment and keep nothing but variables with a prefix of their own (tqdm: TQDM_)."""


_READ_AGAIN = {name: read for framework in FRAMEWORKS for name, read in framework.read_again.items()}


def read_again() -> None:
    """In a forked process, once it has its own variables."""
    for name, read in _READ_AGAIN.items():
        if name in sys.modules:
            read(sys.modules[name], os.environ)  # noqa: TID251 - as the module itself did when it was imported


_ON_THE_WAY = frozenset({__name__, "os", "collections.abc", "_collections_abc"})
"""Modules of the frames between the caller and here."""


def _asking_module() -> str:
    frame = sys._getframe(2)  # noqa: SLF001 - no other way to it
    while frame.f_back is not None and frame.f_globals.get("__name__") in _ON_THE_WAY:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


@contextlib.contextmanager
def looked_up() -> Iterator[ImportLookups]:
    """Note it for as long as this lasts."""
    looked = ImportLookups()
    finder = _Finder(looked)
    sys.meta_path.insert(0, finder)
    # Both share one dictionary, which has no other way in.
    environments: tuple[Any, ...] = (os.environ, os.environb)  # noqa: TID251 - to see what imports ask for
    before = environments[0]._data  # noqa: SLF001 - as above
    noting = _Variables(before)
    noting.looked = looked
    for environment in environments:
        environment._data = noting  # noqa: SLF001 - as above
    try:
        yield looked
    finally:
        sys.meta_path.remove(finder)
        before.clear()
        before.update(noting)
        for environment in environments:
            environment._data = before  # noqa: SLF001 - as above
