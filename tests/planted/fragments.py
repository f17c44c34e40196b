"""Where a fragment of code stands in a function, found by its syntax tree, and what is written in its place.

A fragment is one expression, one or several consecutive statements, or the head of a compound statement up to its colon (`if x:`,
`except OSError:`, `def f(a):`), which stands for the head alone; the head of an `elif` is written as an `if`. How it is formatted and
what comments say makes no difference.
"""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BLOCKS = ("body", "orelse", "finalbody")


class Place(NamedTuple):
    """Where an old fragment stands, in bytes of the source, and what stands there instead."""

    start: int
    end: int
    text: str


def places(source: str, function: str, old: str, new: str) -> list[Place]:
    """Every place in `function` where `old` stands.

    Args:
        source: of a module.
        function: qualified name of the function, method or class; empty: the module without the insides of its definitions.
        old: the fragment that is looked for.
        new: the fragment of the same kind that takes its place; empty: the statements are removed.

    Raises:
        SyntaxError: a fragment is no code, or the two are of different kinds.
    """
    scopes = _scopes(source, function)
    if _is_head(old):
        return [place for scope in scopes for place in _heads(source, scope, old, new)]
    one = _expression(old) if _expression(new) else None
    if one is not None:
        return [Place(*_span(source, node), f"({new})") for scope in scopes for node in _equal(scope, one)]
    return [place for scope in scopes for place in _runs(source, scope, old, new)]


def written(source: str, place: Place) -> str:
    """The source with the new fragment in its place.

    Raises:
        SyntaxError: that is no code any more.
    """
    text = source.encode()
    mutated = (text[: place.start] + place.text.encode() + text[place.end :]).decode()
    ast.parse(mutated)
    return mutated


@lru_cache(maxsize=16)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _scopes(source: str, function: str) -> list[list[ast.AST]]:
    """The nodes of each definition of that name; a property and its setter have one."""
    tree = _parsed(source)
    if function:
        return [list(_walk(node)) for name, node in _definitions(tree, "") if name == function]
    return [list(_walk(tree, inside_definitions=False))]


def _definitions(node: ast.AST, before: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _DEFINITIONS):
            yield before + child.name, child
            yield from _definitions(child, f"{before}{child.name}.")
        else:
            yield from _definitions(child, before)


def _walk(node: ast.AST, *, inside_definitions: bool = True) -> Iterator[ast.AST]:
    yield node
    # Python 3.11 does not know where the parts of an f-string stand.
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            if inside_definitions or not isinstance(child, _DEFINITIONS):
                yield from _walk(child, inside_definitions=inside_definitions)


def _expression(text: str) -> ast.expr | None:
    """The one expression that a fragment is, if it is one."""
    try:
        body = ast.parse(textwrap.dedent(text)).body
    except SyntaxError:
        body = []
    if len(body) > 1 or (body and not isinstance(body[0], ast.Expr)) or not text.strip():
        return None
    try:
        return ast.parse(f"({text}\n)", mode="eval").body
    except SyntaxError:
        return None


def _equal(nodes: Sequence[ast.AST], one: ast.expr) -> Iterator[ast.expr]:
    wanted = ast.dump(one)
    for node in nodes:
        if isinstance(node, ast.expr) and type(node) is type(one) and ast.dump(node) == wanted:
            yield node


def _runs(source: str, nodes: Sequence[ast.AST], old: str, new: str) -> Iterator[Place]:
    """Where the statements stand one after the other."""
    wanted = [ast.dump(statement) for statement in ast.parse(textwrap.dedent(old)).body]
    ast.parse(textwrap.dedent(new))
    for block in (getattr(node, name, None) for node in nodes for name in _BLOCKS):
        if not isinstance(block, list):
            continue
        dumps = [ast.dump(statement) for statement in block]
        for first in range(len(block) - len(wanted) + 1):
            if dumps[first : first + len(wanted)] == wanted:
                start, end = _span(source, block[first])[0], _span(source, block[first + len(wanted) - 1])[1]
                yield Place(start, end, _statements(source, start, new, alone=len(wanted) == len(block)))


def _statements(source: str, start: int, new: str, *, alone: bool) -> str:
    """What is written where statements begin at `start`, indented as they are."""
    before = source.encode()[:start]
    column = start - before.rfind(b"\n") - 1
    new = textwrap.dedent(new).strip("\n")
    if source.encode()[start:].startswith(b"elif"):
        new = f"el{new}" if new.startswith("if ") else new and f"else:\n{textwrap.indent(new, '    ')}"
    elif alone and not new:
        new = "pass"
    return textwrap.indent(new, " " * column).lstrip()


def _is_head(text: str) -> bool:
    return text.rstrip().endswith(":")


def _head(text: str) -> ast.AST:
    """The compound statement of a head, without its blocks."""
    if text.startswith("except"):
        handled = ast.parse(f"try: pass\n{text} pass").body[0]
        assert isinstance(handled, ast.Try)
        return _bare(handled.handlers[0])
    return _bare(ast.parse(f"{text} pass").body[0])


def _bare(node: ast.AST) -> ast.AST:
    bare = copy.copy(node)
    for name in (*_BLOCKS, "decorator_list"):
        if hasattr(bare, name):
            setattr(bare, name, [])
    return bare


def _heads(source: str, nodes: Sequence[ast.AST], old: str, new: str) -> Iterator[Place]:
    wanted = _head(old)
    _head(new)
    text = source.encode()
    for node in nodes:
        if type(node) is type(wanted) and ast.dump(_bare(node)) == ast.dump(wanted):
            start, stop = _offset(source, node), _offset(source, node.body[0])  # type: ignore[attr-defined]  # of every compound statement
            start += len("el") if text[start:].startswith(b"elif") else 0
            end = next(end for end in range(start + 1, stop + 1) if _is_whole(text[start:end], wanted))
            yield Place(start, end, new)


def _is_whole(head: bytes, wanted: ast.AST) -> bool:
    """Does the text end with the colon of the head that is wanted?"""
    try:
        return head.endswith(b":") and ast.dump(_head(head.decode())) == ast.dump(wanted)
    except SyntaxError:
        return False


@lru_cache(maxsize=16)
def _line_starts(source: str) -> list[int]:
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _offset(source: str, node: ast.AST, *, end: bool = False) -> int:
    assert isinstance(node, (ast.stmt, ast.expr, ast.excepthandler))
    if end:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return _line_starts(source)[node.end_lineno - 1] + node.end_col_offset
    return _line_starts(source)[node.lineno - 1] + node.col_offset


def _span(source: str, node: ast.stmt | ast.expr) -> tuple[int, int]:
    """Where a node begins, its first decorator included, and ends."""
    start = _offset(source, node)
    if isinstance(node, _DEFINITIONS) and node.decorator_list:
        start = source.encode().rindex(b"@", 0, _offset(source, node.decorator_list[0]))
    return start, _offset(source, node, end=True)
