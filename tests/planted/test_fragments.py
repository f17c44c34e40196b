"""Where a fragment is found, and what is written in its place."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

from tests.planted import fragments
from tests.planted.bug import Bug


def _planted(source: str, function: str, old: str, new: str) -> str:
    source = textwrap.dedent(source)
    [place] = fragments.places(source, function, old, new)
    return fragments.written(source, place)


def _bug(function: str, old: str, new: str) -> Bug:
    return Bug("a bug", "I1", "module.py", function, old, new, ("tests/planted",))


@pytest.mark.parametrize(
    ("function", "old", "why"),
    [
        (
            "count",
            "x + 1",
            '"a bug": the old fragment stands 2 times in count of recovery/module.py, not once',
        ),
        (
            "count",
            "x + 2",
            '"a bug": the old fragment stands 0 times in count of recovery/module.py, not once',
        ),
        ("amount", "x + 1", '"a bug": the old fragment stands 0 times in amount of recovery/module.py'),
        ("", "x + 1", '"a bug": the old fragment stands 0 times in the module of recovery/module.py'),
        ("count", "x + (", '"a bug": a fragment for count of recovery/module.py cannot be read: '),
    ],
)
def test_what_does_not_stand_there_exactly_once_is_refused_by_name(
    tmp_path: Path, function: str, old: str, why: str
) -> None:
    source = "def count(x):\n    y = x + 1\n    return y * (x + 1)\n"
    (tmp_path / "module.py").write_text(source, encoding="utf-8")

    with pytest.raises(ValueError, match=re.escape(why)):
        _bug(function, old, "x").plant(tmp_path)

    assert (tmp_path / "module.py").read_text(encoding="utf-8") == source


def test_formatting_and_comments_make_no_difference() -> None:
    source = """
        def send(one):
            if one.is_open and (  # nobody else
                one.name == 'é'
            ):
                post(
                    one,  # again
                    at=1,
                )
    """

    mutated = _planted(source, "send", 'if one.is_open and one.name == "é":', "if one.is_open:")
    mutated = _planted(mutated, "send", "post(one, at=1)", "post(one, at=2)")

    assert mutated == textwrap.dedent("""
        def send(one):
            if one.is_open:
                (post(one, at=2))
    """)


def test_a_method_is_named_with_its_class_and_the_module_is_what_stands_outside() -> None:
    source = """
        LIMIT = 1
        class A:
            def f(self):
                return LIMIT
        class B:
            def f(self):
                LIMIT = 1
                return LIMIT
    """

    assert _planted(source, "", "LIMIT = 1", "LIMIT = 2").startswith("\nLIMIT = 2\n")
    assert _planted(source, "B.f", "LIMIT = 1", "LIMIT = 2").count("        LIMIT = 2\n") == 1
    assert _planted(source, "A.f", "LIMIT", "0").count("return (0)") == 1
    assert _planted(source, "A", "LIMIT", "0").count("return (0)") == 1


def test_a_property_and_its_setter_are_both_looked_through() -> None:
    source = """
        class A:
            @property
            def x(self):
                return 1
            @x.setter
            def x(self, x):
                self.y = x
    """

    assert "self.y = 0" in _planted(source, "A.x", "self.y = x", "self.y = 0")
    assert "return (2)" in _planted(source, "A.x", "1", "2")


_CHOICE = """\
def f():
    if x:
        a()
        b()
    elif y:
        c()
    else:
        d()
"""
_ELIF = "if y:\n    c()\nelse:\n    d()"


@pytest.mark.parametrize(
    ("old", "new", "body"),
    [
        ("a()", "", "if x:\n    b()\nelif y:\n    c()\nelse:\n    d()"),
        ("a()\nb()", "", "if x:\n    pass\nelif y:\n    c()\nelse:\n    d()"),
        ("c()", "", "if x:\n    a()\n    b()\nelif y:\n    pass\nelse:\n    d()"),
        ("a()", "if z:\n    e()", "if x:\n    if z:\n        e()\n    b()\nelif y:\n    c()\nelse:\n    d()"),
        (_ELIF, "", "if x:\n    a()\n    b()"),
        (_ELIF, "e()\nreturn", "if x:\n    a()\n    b()\nelse:\n    e()\n    return"),
        (_ELIF, "if z:\n    c()", "if x:\n    a()\n    b()\nelif z:\n    c()"),
        ("if y:", "if z:", "if x:\n    a()\n    b()\nelif z:\n    c()\nelse:\n    d()"),
    ],
)
def test_statements_that_are_removed_or_exchanged_leave_a_valid_block(old: str, new: str, body: str) -> None:
    mutated = _planted(_CHOICE, "f", old, new)

    assert ast.unparse(ast.parse(mutated)) == "def f():\n" + textwrap.indent(body, "    ")


_PARTS = """\
@cached(size=1)
async def f(a, *, b=2):
    try:
        while b:
            call(a, key=b)
    except (OSError, ValueError) as error:
        return any(c for c in a if c.d), f"{a} and {a!r}"
"""


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("cached(size=1)", "cached(size=3)", "@cached(size=3)"),
        ("async def f(a, *, b=2):", "async def f(a, b=2):", "async def f(a, b=2):"),
        ("2", "3", "async def f(a, *, b=3):"),
        ("while b:", "if b:", "        if b:"),
        ("call(a, key=b)", "call(a)", "            call(a)"),
        ("except (OSError, ValueError) as error:", "except OSError:", "    except OSError:"),
        ("(OSError, ValueError)", "OSError", "    except OSError as error:"),
        ("c.d", "c", "        return (any((c for c in a if c)), f'{a} and {a!r}')"),
        ("(c for c in a if c.d)", "(c for c in a)", "        return (any((c for c in a)), f'{a} and {a!r}')"),
        ("f'{a} and {a!r}'", "''", "        return (any((c for c in a if c.d)), '')"),
    ],
)
def test_every_part_of_a_function_can_be_reached(old: str, new: str, line: str) -> None:
    mutated = ast.unparse(ast.parse(_planted(_PARTS, "f", old, new)))
    sound = ast.unparse(ast.parse(_PARTS)).splitlines()

    assert [one for one in mutated.splitlines() if one not in sound] == [line]


def test_a_whole_definition_is_exchanged_with_its_decorators() -> None:
    method = "@cached(size=1)\nasync def g():\n    return 1"
    source = "class A:\n" + textwrap.indent(method, "    ")

    assert _planted(source, "A", method, "") == "class A:\n    pass"
