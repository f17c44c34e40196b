"""Every message of the protocol as bytes, made from the types: one with every field set, and one with the required ones only."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
from msgspec import inspect

from recovery.core.messages import FromNode, FromScheduler

SENDERS: dict[str, Any] = {"node": FromNode, "scheduler": FromScheduler}


def classes(sender: str) -> dict[str, type[msgspec.Struct]]:
    """The messages of one side, by the tag that names them on the wire."""
    return {kind.__struct_config__.tag: kind for kind in get_args(SENDERS[sender])}


def examples() -> Iterator[dict[str, Any]]:
    """Two of each, as rows of the golden file."""
    for sender in SENDERS:
        for tag, kind in classes(sender).items():
            for fields in ("all", "required"):
                found = inspect.type_info(kind)
                assert isinstance(found, inspect.StructType), "a message is a struct"
                content = {"type": tag, **_fields(found, everything=fields == "all")}
                frame = msgspec.msgpack.encode(content)
                yield {"sender": sender, "fields": fields, "content": content, "frame": frame.hex()}


def _fields(struct: inspect.StructType, *, everything: bool) -> dict[str, Any]:
    return {
        field.encode_name: _value(field.type, field.name, everything=everything)
        for field in struct.fields
        if everything or field.required
    }


def _value(kind: inspect.Type, name: str, *, everything: bool) -> Any:
    match kind:
        case inspect.StructType():
            return _fields(kind, everything=everything)
        case inspect.VarTupleType(item_type=item):
            return [_value(item, name, everything=everything)]
        case inspect.DictType(key_type=key, value_type=item):
            return {_value(key, name, everything=everything): _value(item, name, everything=everything)}
        case inspect.UnionType(types=types):
            return _value(
                next(one for one in types if not isinstance(one, inspect.NoneType)),
                name,
                everything=everything,
            )
        case inspect.EnumType(cls=cls):
            [*_, last] = cls
            assert isinstance(last, enum.Enum), "an enumeration has members"
            return last.value
        case inspect.BoolType() | inspect.FloatType():
            return True if isinstance(kind, inspect.BoolType) else 0.5
        case inspect.IntType():
            return 1 + sum(map(ord, name)) % 997
        case inspect.StrType(pattern=pattern):
            return "worker_3" if pattern else f"the {name}"
        case _:
            raise AssertionError(f"no example of {kind} for {name}")
