"""Plain values to records, with all that msgspec needs to know built while modules are imported.

msgspec learns a class at its first use, and a second thread that uses it meanwhile meets what it knows half built: a SIGSEGV.
So the first use is the import of the module that makes the converter, or the decoder; tests/house holds every module to it.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

_Shape = TypeVar("_Shape")

UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What a decoder raises for bytes of which it makes nothing: the last two for text that is no UTF-8, and for very many opening brackets."""


class Converter(Generic[_Shape]):
    """Of one type; made at module level."""

    def __init__(self, shape: type[_Shape]) -> None:
        """Learn the type, and every class in it."""
        self._shape = shape
        msgspec.json.Decoder(shape)

    def __call__(self, value: Any) -> _Shape:
        """Make the value one of the type.

        Raises:
            msgspec.ValidationError: it does not fit.
        """
        return msgspec.convert(value, self._shape)
