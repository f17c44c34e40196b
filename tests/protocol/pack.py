"""As much of msgpack as the protocol page needs: nil, booleans, whole numbers, text, arrays and maps."""

from __future__ import annotations

import struct
from typing import Any

_WHOLE = ((0xCC, ">B"), (0xCD, ">H"), (0xCE, ">I"), (0xCF, ">Q"))
_BELOW_ZERO = ((0xD0, ">b"), (0xD1, ">h"), (0xD2, ">i"), (0xD3, ">q"))
_LENGTHS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}


def pack(value: Any) -> bytes:
    """A value as msgpack."""
    if value is None or isinstance(value, bool):
        return bytes([{None: 0xC0, False: 0xC2, True: 0xC3}[value]])
    if isinstance(value, int):
        return _packed_number(value)
    if isinstance(value, str):
        text = value.encode()
        return _head(len(text), 0xA0, 31, (0xD9, 0xDA, 0xDB)) + text
    if isinstance(value, dict):
        parts = [pack(part) for item in value.items() for part in item]
        return _head(len(value), 0x80, 15, (0, 0xDE, 0xDF)) + b"".join(parts)
    return _head(len(value), 0x90, 15, (0, 0xDC, 0xDD)) + b"".join(pack(part) for part in value)


def _packed_number(value: int) -> bytes:
    assert value >= 0, "the protocol has no negative number"
    if value < 0x80:
        return bytes([value])
    size = next(at for at in range(4) if value < 1 << (8 << at))
    code, form = _WHOLE[size]
    return bytes([code]) + struct.pack(form, value)


def _head(count: int, short: int, short_max: int, codes: tuple[int, int, int]) -> bytes:
    if count <= short_max:
        return bytes([short | count])
    for code, form, limit in zip(codes, (">B", ">H", ">I"), (1 << 8, 1 << 16, 1 << 32), strict=True):
        if code and count < limit:
            return bytes([code]) + struct.pack(form, count)
    raise ValueError(count)


def unpack(frame: bytes) -> Any:
    """The value of a frame, which must be all of it."""
    value, end = _read(frame, 0)
    assert end == len(frame), "something follows the value"
    return value


def _read(frame: bytes, at: int) -> tuple[Any, int]:
    code, at = frame[at], at + 1
    if code < 0x80 or code >= 0xE0:
        return code if code < 0x80 else code - 0x100, at
    if code in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[code], at
    for number, form in (*_WHOLE, *_BELOW_ZERO):
        if code == number:
            return struct.unpack_from(form, frame, at)[0], at + struct.calcsize(form)
    if code in _LENGTHS:
        count, at = struct.unpack_from(_LENGTHS[code], frame, at)[0], at + struct.calcsize(_LENGTHS[code])
    else:
        count = code & (0x1F if 0xA0 <= code < 0xC0 else 0x0F)
    if 0xA0 <= code < 0xC0 or code in (0xD9, 0xDA, 0xDB):
        return frame[at : at + count].decode(), at + count
    is_map = 0x80 <= code < 0x90 or code in (0xDE, 0xDF)
    assert is_map or 0x90 <= code < 0xA0 or code in (0xDC, 0xDD), (
        f"msgpack's {code:#x} is not of the protocol"
    )
    parts = []
    for _ in range(2 * count if is_map else count):
        part, at = _read(frame, at)
        parts.append(part)
    return (dict(zip(parts[::2], parts[1::2], strict=True)) if is_map else parts), at
