"""Nothing that is read becomes code: no pickle in any of its forms, no eval, no shell, and tensors only by the safe loader."""

from __future__ import annotations

import ast

import pytest

from tests.house.files import ROOT, name_of, parsed, python_files

_MODULES = frozenset(
    {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
)
_CALLS = frozenset(
    {"eval", "exec", "compile", "os.system", "os.popen", "torch.jit.load", "subprocess.getoutput"}
)
_ALLOWED = frozenset(
    {
        ("recovery/launch/forked_child.py", "exec"),
        ("recovery/launch/forked_child.py", "compile"),
        ("recovery/torch/file_layout.py", "pickle"),
    }
)
"""There the user's own script is begun, as `python script` begins it; and torch.save is listened to while it writes, which reads nothing."""


def _wrong(node: ast.AST) -> str:
    """What it is, where it must not be; empty: it may."""
    match node:
        case ast.Import(names=names):
            return next((one.name for one in names if one.name.partition(".")[0] in _MODULES), "")
        case ast.ImportFrom(module=str(module)):
            return module if module.partition(".")[0] in _MODULES else ""
        case ast.Call(func=func, keywords=keywords):
            name = ast.unparse(func)
            given = {one.arg: ast.unparse(one.value) for one in keywords}
            if name in _CALLS or given.get("shell", "False") != "False":
                return name
            if name.endswith("torch.load") and given.get("weights_only") != "True":
                return name
        case _:
            pass
    return ""


def test_no_data_becomes_code() -> None:
    wrong = [
        f"{name_of(path)}:{node.lineno} {what}"  # type: ignore[attr-defined]  # what is found has a line
        for path in python_files()
        if path.is_relative_to(ROOT / "recovery")
        for node in ast.walk(parsed(path))
        if (what := _wrong(node)) and (name_of(path), what) not in _ALLOWED
    ]

    assert wrong == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "import yaml.loader",
        "from marshal import loads",
        "eval(text)",
        "os.system(command)",
        "subprocess.run(command, shell=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
    ],
)
def test_the_rule_finds_each_form(code: str) -> None:
    assert any(_wrong(node) for node in ast.walk(ast.parse(code)))


def test_the_rule_lets_the_safe_loader_pass() -> None:
    assert not any(map(_wrong, ast.walk(ast.parse("torch.load(path, weights_only=True)"))))
