"""A value that is never shown."""

from __future__ import annotations

from typing_extensions import override

NOT_SHOWN = "(not shown)"


class Secret:
    """A text that prints as nothing. Equal to no other: it is not compared, it is used."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """Keep the text."""
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the caller that uses it."""
        return self._text

    @override
    def __repr__(self) -> str:
        return NOT_SHOWN

    @override
    def __reduce__(self) -> tuple[object, ...]:
        message = "a secret is not copied into anything"
        raise TypeError(message)
