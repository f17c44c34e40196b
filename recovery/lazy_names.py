"""Public names of a package that are loaded when they are first used (PEP 562), so that importing the package costs little."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def loader(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Make a package's `__getattr__`, and its `__dir__`, which lists the public names, loaded or not.

    Args:
        package: its name.
        homes: the module that each public name lives in.
    """

    def load(name: str) -> object:
        home = homes.get(name)
        if home is None:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message)
        value: object = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *homes})
