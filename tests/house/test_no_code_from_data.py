"""Nothing that is read becomes code, as far as ruff does not see it: tensors are read by the safe loader only.

Ruff holds the rest: no pickle, marshal, shelve or eval (S102, S301, S302, S307), no shell (S602, S605), no library that loads
pickles (TID251 in `pyproject.toml`).
"""

from __future__ import annotations

import ast

from tests.house.files import Finding, name_of, nodes_of, program_files, report

_CALLS = frozenset({"compile", "torch.jit.load"})
_ALLOWED = frozenset({("recovery/launch/forkserver/forked_child.py", "compile")})
"""The user's own script is begun there, as `python script` begins it."""


def test_no_data_becomes_code() -> None:
    report(
        Finding(path, node.lineno, name, "read it with msgspec, or with torch.load(..., weights_only=True)")
        for path in program_files()
        for node in nodes_of(path)
        if isinstance(node, ast.Call)
        for name in [ast.unparse(node.func)]
        if (name in _CALLS or (name.endswith("torch.load") and not _is_safe(node)))
        and (name_of(path), name) not in _ALLOWED
    )


def _is_safe(call: ast.Call) -> bool:
    return any(one.arg == "weights_only" and ast.unparse(one.value) == "True" for one in call.keywords)
