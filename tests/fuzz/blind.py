"""Changes right bytes by chance, again and again, and sees what is made of them. Needs nothing but Python, and repeats itself by its seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

_LARGE = (
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
    b"\x80" + b"\0" * 7,
    b"9" * 400,
    b"-1",
    b"1e999",
    b"NaN",
    b"[" * 5_000,
    b"\x91" * 5_000,
)
_ODD = (
    b"\0",
    b"\n",
    b"\r",
    b"\x1b",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b'"',
    b"\\u0000",
    b"\\ud800",
    b"../",
    b"\xe2\x80\xae",
)
_CHANGES_MAX = 6


class Found(NamedTuple):
    """Bytes of which something was made that must not be."""

    data: bytes
    error: Exception


def changed(right: list[bytes], draw: random.Random) -> bytes:
    """One of the right ones, changed in a few places."""
    data = bytearray(draw.choice(right))
    for _ in range(draw.randrange(1, _CHANGES_MAX + 1)):
        place = draw.randrange(len(data) + 1)
        match draw.randrange(7):
            case 0:
                data[place : place + 1] = draw.randbytes(1)
            case 1:
                del data[place : place + draw.randrange(1, 20)]
            case 2:
                data[place:place] = draw.choice(_ODD)
            case 3:
                data[place : place + draw.choice((0, 1, 2, 8))] = draw.choice(_LARGE)
            case 4:
                other = draw.choice(right)
                begin = draw.randrange(len(other) + 1)
                data[place : place + draw.randrange(30)] = other[begin : begin + draw.randrange(1, 60)]
            case 5:
                del data[place:]
            case _:
                if place < len(data):
                    data[place] ^= 1 << draw.randrange(8)
    return bytes(data)


def inputs(right: list[bytes], *, seed: int) -> Iterator[bytes]:
    """The right ones, then changed ones without end; a seed gives the same ones each time."""
    draw = random.Random(seed)
    yield from right
    while True:
        yield changed(right, draw)


def fuzz(take: Callable[[bytes], None], given: Iterable[bytes]) -> tuple[int, Found | None]:
    """Feed it with all that is given, or until it raises.

    Returns:
        How often it was fed, and what it raised for.
    """
    count = 0
    for data in given:
        count += 1
        try:
            take(data)
        except Exception as error:  # noqa: BLE001 - any is what is looked for
            return count, Found(data, error)
    return count, None
