"""Changes right bytes by chance, again and again, and sees what is made of them. Needs nothing but Python, and repeats itself by its seed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
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


def fuzz(
    take: Callable[[bytes], None], right: list[bytes], *, seconds: float, seed: int
) -> tuple[int, Found | None]:
    """Feed it until the time is over, or until it raises.

    Returns:
        How often it was fed, and what it raised for.
    """
    draw, ends, count = random.Random(seed), time.monotonic() + seconds, 0
    for data in right:
        if (found := _tried(take, data)) is not None:
            return count, found
        count += 1
    while time.monotonic() < ends:
        count += 1
        if (found := _tried(take, changed(right, draw))) is not None:
            return count, found
    return count, None


def _tried(take: Callable[[bytes], None], data: bytes) -> Found | None:
    try:
        take(data)
    except Exception as error:  # noqa: BLE001 - any is what is looked for
        return Found(data, error)
    return None
