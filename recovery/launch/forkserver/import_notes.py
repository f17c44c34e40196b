"""What the imports of a template look up and make, which each worker's own imports would find or make otherwise."""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib.abc
import os
import random  # noqa: TID251 - whose states others have made
import sys
import tempfile
from collections import defaultdict
from collections.abc import Container, Iterator
from typing import Any

from typing_extensions import override

from recovery.frameworks import FRAMEWORKS

_READ_AGAIN = {name: read for framework in FRAMEWORKS for name, read in framework.read_again.items()}


class ImportNotes:
    """While the imports run."""

    def __init__(self) -> None:
        """Nothing is looked up or made yet."""
        self.names: set[str] = set()
        """Top-level modules that were looked for, found or not."""
        self.uses: dict[str, set[str]] = defaultdict(set)
        """By module: those that it has imported."""
        self.variables: set[str] = set()
        """Of the environment, that were asked for."""
        self.generators: list[random.Random] = []
        """Seeded from the system, so that each worker's would be another."""
        self.files = False
        """Was a temporary file or directory made? The process that made it removes it at its end."""

    def reasons(self, of_one: Container[str]) -> Iterator[str]:
        """Why no process can be forked.

        Args:
            of_one: variables in which the workers differ.
        """
        for name in sorted(self.variables):
            if name in of_one:
                yield f"the imports look at {name}, in which the workers differ"
        if self.files:
            yield "the imports have made a temporary file or directory, which one worker would remove for all"
        for generator in _numpys_generators():
            yield f"the imports have made a random generator of numpy's ({generator})"


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing, and notes what is asked for, and by which module."""

    def __init__(self, notes: ImportNotes) -> None:
        self._notes = notes

    @override
    def find_spec(self, fullname: str, path: object, target: object = None, /) -> None:
        asking = _asking_module()
        # What the template tries to import, a program may find elsewhere.
        if not asking.startswith(_OURS):
            self._notes.names.add(fullname.partition(".")[0])
        self._notes.uses[asking].add(fullname)


class _Variables(dict[bytes, bytes]):
    """Of the environment; notes which are asked for."""

    notes: ImportNotes

    @override
    def __getitem__(self, name: bytes) -> bytes:
        if _asking_module() not in _READ_AGAIN:
            self.notes.variables.add(os.fsdecode(name))
        return super().__getitem__(name)


_OURS = "recovery.launch.forkserver"
_ON_THE_WAY = ("os", "collections.abc", "_collections_abc", "importlib", "importlib._bootstrap", __name__)
"""Modules of the frames between who asks and here."""


def _asking_module() -> str:
    frame = sys._getframe(2)  # noqa: SLF001 - no other way to it
    while frame.f_back is not None and frame.f_globals.get("__name__") in _ON_THE_WAY:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


@contextlib.contextmanager
def noted() -> Iterator[ImportNotes]:
    """Note it for as long as this lasts."""
    notes = ImportNotes()
    seed, names, import_module = random.Random.seed, _of_tempfile._get_candidate_names, builtins.__import__  # noqa: SLF001 - every temporary name comes from it
    finder = _Finder(notes)
    # Both share one dictionary, which has no other way in.
    environments: tuple[Any, ...] = (os.environ, os.environb)  # noqa: TID251 - to see what imports ask for
    variables = environments[0]._data  # noqa: SLF001 - as above
    noting = _Variables(variables)
    noting.notes = notes

    def noting_seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        notes.generators = [generator for generator in notes.generators if generator is not self]
        if a is None and not isinstance(self, random.SystemRandom):
            notes.generators.append(self)
        seed(self, a, version)

    def noting_names() -> Any:
        notes.files = True
        return names()

    def noting_import(name: str, globals: Any = None, *others: Any, **named: Any) -> Any:  # noqa: A002 - as Python calls it
        module = import_module(name, globals, *others, **named)
        fromlist = named.get("fromlist") or (others[1] if len(others) > 1 else ()) or ()
        used = notes.uses[(globals or {}).get("__name__", "")]
        used.add(found := getattr(module, "__name__", name) if fromlist else name)
        used.update(below for each in fromlist if (below := f"{found}.{each}") in sys.modules)
        return module

    def patch(environment: Any, seed: Any, names: Any, import_module: Any) -> None:
        for each in environments:
            each._data = environment  # noqa: SLF001 - as above
        _of_random.seed, _of_tempfile._get_candidate_names = seed, names  # noqa: SLF001 - as above
        builtins.__import__ = import_module

    sys.meta_path.insert(0, finder)
    patch(noting, noting_seed, noting_names, noting_import)
    try:
        yield notes
    finally:
        patch(variables, seed, names, import_module)
        sys.meta_path.remove(finder)
        variables.clear()
        variables.update(noting)


def read_again() -> None:
    """In a forked process, once it has its own variables."""
    for name, read in _READ_AGAIN.items():
        if name in sys.modules:
            read(sys.modules[name], os.environ)  # noqa: TID251 - as the module itself did when it was imported


def _numpys_generators() -> list[str]:
    """All but the one behind `numpy.random.seed`, which is seeded again."""
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is None:
        return []
    own = numpy_random.mtrand._rand  # noqa: SLF001 - numpy has no other name for it
    kinds = (numpy_random.BitGenerator, numpy_random.RandomState)
    known = {id(own), id(own._bit_generator)}  # noqa: SLF001 - as above
    # By its type: an object may run code of its own when it is asked for its class.
    found = (candidate for candidate in gc.get_objects() if issubclass(type(candidate), kinds))
    return [type(generator).__name__ for generator in found if id(generator) not in known]


_of_random: Any = random.Random
_of_tempfile: Any = tempfile
