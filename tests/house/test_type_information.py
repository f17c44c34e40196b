"""msgspec builds what it knows of a class at the first use, and other threads see it half built: that first use is the import.

A worker's save thread and its watch thread read their first manifest at the same moment: with a switch interval of 1 us, 1 of 100
fresh processes ended in SIGSEGV.
"""

from __future__ import annotations

import ast

from tests.house.files import Finding, name_of, nodes_of, program_files, report
from tests.untraced import run_module

_MADE_AT_IMPORT = frozenset({"Decoder", "Encoder", "Converter"})
_BUILDS_AT_FIRST_USE = frozenset({"msgspec.convert", "msgspec.inspect.type_info", "msgspec.json.schema"})
_ALLOWED = {"recovery/core/converter.py": "its own constructor builds, and it is made at import"}


def test_what_is_read_for_the_first_time_builds_no_type_information() -> None:
    done = run_module("tests.house.first_uses")

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6
    assert [line for line in done.stdout.splitlines() if not line.endswith(" reads")] == []


def test_decoders_are_made_while_modules_are_imported() -> None:
    report(
        Finding(
            path,
            call.lineno,
            ast.unparse(call),
            "make a Decoder or a Converter at module level, and use that",
        )
        for path in program_files()
        if name_of(path) not in _ALLOWED
        for function in nodes_of(path)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and _builds(call)
    )


def _builds(call: ast.Call) -> bool:
    """Does this call make msgspec look at a class, if nobody has before?"""
    name = ast.unparse(call.func)
    if name in ("msgspec.json.decode", "msgspec.msgpack.decode"):
        return len(call.args) > 1 or any(keyword.arg == "type" for keyword in call.keywords)
    return name in _BUILDS_AT_FIRST_USE or name.rpartition(".")[2] in _MADE_AT_IMPORT
