"""Struct to bytes and back. The decoder is the schema and the first line of defence.

What a node or the scheduler did not send by our rules never becomes a message: it becomes a `ProtocolError` that names
what was wrong, in text that is safe to log (no control characters, bounded length).
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from recovery.core.converter import UNREADABLE
from recovery.core.messages import FromNode, FromScheduler
from recovery.errors import ProtocolError

_REASON_CHARACTERS_MAX = 200
"""Of a decoder's error. It may quote the peer (an unknown tag of 64 KiB), and it ends in a log line."""

_SENTENCES = ("reason", "error", "traceback", "because", "ends_because", "obstacle")
"""What fields are called that are sentences for people."""


@functools.cache
def prose_of(kind: type[msgspec.Struct]) -> tuple[tuple[str, int], ...]:
    """Fields of a message that are sentences for people, with their limits.

    They are cut to fit: the error text of a user's exception has any length, and must not cost the node its connection. Names, paths and
    digests are never cut.
    """
    fields = [field for field in msgspec.structs.fields(kind) if field.name in _SENTENCES]
    return tuple((field.name, field.type.__metadata__[0].max_length) for field in fields)


_encoder = msgspec.msgpack.Encoder()
_from_node: msgspec.msgpack.Decoder[FromNode] = msgspec.msgpack.Decoder(FromNode)
_from_scheduler: msgspec.msgpack.Decoder[FromScheduler] = msgspec.msgpack.Decoder(FromScheduler)


def encode(message: FromNode | FromScheduler) -> bytes:
    """Give a message its wire form. Sentences for people are cut to what the other side accepts.

    Raises:
        UnicodeEncodeError: a name or path that is no Unicode text (lone surrogates).
    """
    changes: dict[str, Any] = {}
    for field, limit in prose_of(type(message)):
        text: str = getattr(message, field)
        fitting = _fitting(text, limit)
        if fitting is not text:
            changes[field] = fitting
    return _encoder.encode(msgspec.structs.replace(message, **changes) if changes else message)


def decode_from_node(frame: bytes, *, frame_bytes_max: int, peer: str = "a node") -> FromNode:
    """Read a frame that a node sent.

    Args:
        frame: one whole WebSocket message.
        frame_bytes_max: the limit that holds for this peer now, in bytes; checked before anything is read.
        peer: the sender, for the error.

    Raises:
        ProtocolError: too large, not msgpack, an unknown tag, a field missing, of another type or out of range.
    """
    if len(frame) > frame_bytes_max:
        raise ProtocolError(
            peer=peer, reason=f"a message of {len(frame)} bytes, at most {frame_bytes_max} are allowed"
        )
    message: FromNode = _decode(_from_node, frame, peer)
    return message


def decode_from_scheduler(frame: bytes, *, peer: str) -> FromScheduler:
    """Read a frame that the scheduler sent. Its size is limited by the client's WebSocket.

    Raises:
        ProtocolError: as for `decode_from_node`.
    """
    message: FromScheduler = _decode(_from_scheduler, frame, peer)
    return message


def _decode(decoder: msgspec.msgpack.Decoder[Any], frame: bytes, peer: str) -> Any:
    if not frame:
        raise ProtocolError(peer=peer, reason="an empty message")
    try:
        return decoder.decode(frame)
    except UNREADABLE as error:
        raise ProtocolError(peer=peer, reason=f"no message of ours ({_cut(str(error))})") from error


def _fitting(text: str, limit: int) -> str:
    """Keep the end: a traceback's last lines name the error."""
    if not text.isascii():
        text_on_wire = text.encode("utf-8", "backslashreplace").decode()
        text = text if text_on_wire == text else text_on_wire
    return text if len(text) <= limit else "[cut] " + text[len(text) - limit + len("[cut] ") :]


def _cut(text: str) -> str:
    return text if len(text) <= _REASON_CHARACTERS_MAX else f"{text[:_REASON_CHARACTERS_MAX]}..."
