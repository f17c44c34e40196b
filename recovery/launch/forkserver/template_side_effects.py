"""What the imports of a template make by chance, which no two workers may share: random numbers' states, temporary files."""

from __future__ import annotations

import contextlib
import gc
import random  # noqa: TID251 - whose states others have made
import sys
import tempfile
from collections.abc import Iterator
from typing import Any


class ImportSideEffects:
    """While the imports run."""

    def __init__(self) -> None:
        """Nothing is made yet."""
        self.generators: list[random.Random] = []
        """Seeded from the system, so that each worker's would be another."""
        self.files = False
        """Was a temporary file or directory made? The process that made it removes it at its end."""

    def what_is_shared(self) -> str:
        """Say what cannot be made again; empty: nothing."""
        if self.files:
            return (
                "the imports have made a temporary file or directory, which one worker would remove for all"
            )
        generators = _numpys_generators()
        return f"the imports have made a random generator of numpy's ({generators[0]})" if generators else ""


@contextlib.contextmanager
def made() -> Iterator[ImportSideEffects]:
    """Note it for as long as this lasts."""
    noted = ImportSideEffects()
    seed: Any = random.Random.seed
    names: Any = tempfile._get_candidate_names  # type: ignore[attr-defined]  # noqa: SLF001 - every temporary name comes from it

    def noting_seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        noted.generators = [generator for generator in noted.generators if generator is not self]
        if a is None and not isinstance(self, random.SystemRandom):
            noted.generators.append(self)
        seed(self, a, version)

    def noting_names() -> Any:
        noted.files = True
        return names()

    of_random: Any = random.Random
    of_tempfile: Any = tempfile
    of_random.seed, of_tempfile._get_candidate_names = noting_seed, noting_names  # noqa: SLF001 - see above
    try:
        yield noted
    finally:
        of_random.seed, of_tempfile._get_candidate_names = seed, names  # noqa: SLF001 - as above


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
