"""Plain data as YAML: mappings, lists, texts, whole numbers and truth values. Every text but a plain name is quoted. Pure.

A library would be a dependency of every installation for one command that only writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*\Z")
_MEANS_ANOTHER = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
"""Words that a reader of YAML takes for something else than a text."""


def document(data: Mapping[str, Any]) -> str:
    """One object."""
    return "".join(f"{line}\n" for line in _mapping(data, ""))


def _mapping(data: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in data.items():
        name = _text(key)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:"
            yield from _mapping(value, f"{indent}  ")
        elif _is_list(value) and not all(isinstance(item, int) for item in value):
            yield f"{indent}{name}:"
            yield from _list(value, indent)
        elif isinstance(value, str) and "\n" in value:
            yield f"{indent}{name}: |-"
            yield from (f"{indent}  {line}".rstrip() for line in value.split("\n"))
        else:
            yield f"{indent}{name}: {_scalar(value)}"


def _list(items: Sequence[Any], indent: str) -> Iterator[str]:
    for item in items:
        if isinstance(item, Mapping) and item:
            first, *others = _mapping(item, f"{indent}  ")
            yield f"{indent}- {first.removeprefix(f'{indent}  ')}"
            yield from others
        elif isinstance(item, str) and "\n" in item:
            yield f"{indent}- |-"
            yield from (f"{indent}  {line}".rstrip() for line in item.split("\n"))
        else:
            yield f"{indent}- {_scalar(item)}"


def _scalar(value: Any) -> str:
    if value is True or value is False:
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping) and not value:
        return "{}"
    if _is_list(value):
        return f"[{', '.join(_scalar(item) for item in value)}]"
    raise TypeError(type(value).__name__)


def _text(text: str) -> str:
    if _PLAIN.match(text) and text.lower() not in _MEANS_ANOTHER:
        return text
    # A text of JSON is one of YAML, as far as it prints.
    return json.dumps(text, ensure_ascii=False)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
