"""docs/reference/api.md: every public name, its signature and its docstring, read from the source, so that no framework has to be there."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from typing import NamedTuple, Union

from recovery.frameworks import FRAMEWORKS
from tests.house.files import ROOT, parsed

_HEAD = """\
# Python API

Everything that a training script may import. What is not named here may change in any release. Types are as in the source; tensors are
given with their dtype and shape, times with their unit.

"""
_BEHIND = {"lightning": ("transformers", "accelerate")}
"""Packages of trainers that are no frameworks of their own to the launcher, and behind which they stand here."""
_HOW_TO = {"transformers": "trainers", "accelerate": "trainers"}
"""Pages of another name than the package's."""


def _packages() -> Iterator[tuple[str, str]]:
    """Each with the sentence below its heading."""
    yield "recovery", ""
    for framework in FRAMEWORKS:
        for name in (framework.name, *_BEHIND.get(framework.name, ())):
            page = f"howto/{_HOW_TO.get(name, name)}.md"
            link = f" [How to](../{page})." if (ROOT / "docs" / page).exists() else ""
            yield f"recovery.{name}", f"Needs the extra `{name}`.{link}"
    yield "recovery.ray", "Needs the extra `ray`. [How to](../howto/ray.md)."


_PACKAGES = tuple(_packages())
_SECTIONS = {
    "Args": "Arguments",
    "Attributes": "Attributes",
    "Raises": "Raises",
    "Returns": "Returns",
    "Yields": "Yields",
}
_FOR_SCRIPTS = {
    "Session": (
        "applied",
        "check",
        "checkpoint_directory",
        "committed_step",
        "keep",
        "loop",
        "position",
        "refuse_drains",
        "report",
        "resume_from",
        "steps",
        "stop_if_asked",
    ),
    "ResumableLoader": ("batch", "close", "epoch", "samples"),
    "TrainState": ("batches", "read_sharded"),
    "ModelCheckpoint": (),
    "LossMonitor": (),
    "AdoptFolders": (),
    "Trainer": ("fit",),
    "Recovered": ("train",),
}
"""Of classes whose other methods are called by the engine and by integrations; of the rest all are shown."""
_Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]


class _Found(NamedTuple):
    module: str
    node: ast.ClassDef | _Function


_FOREIGN = {"TrainingArguments"}
"""Given on as it is, so that a script changes one line: its own package documents it."""


def api_page() -> str:
    """The whole page, package by package."""
    return _HEAD + "\n".join(_package(name, note) for name, note in _PACKAGES)


def public_names(package: str) -> list[str]:
    """What `from package import *` gives, without dunders."""
    [listed] = [
        node.value
        for node in _tree(package).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if node.targets[0].id == "__all__"
    ]
    return [name for name in ast.literal_eval(listed) if not name.startswith("__")]


def _package(name: str, note: str) -> str:
    parts = [f"## {name}\n"]
    if note:
        parts.append(f"{note}\n")
    for public in public_names(name):
        found = _find(name, public)
        if found is None and public in _FOREIGN:
            continue
        assert found is not None, f"{name}.{public} is defined nowhere"
        homes = [one for one, _ in _PACKAGES if public in public_names(one)]
        owner = ".".join(found.module.split(".")[:2])
        first = owner if owner in homes else homes[0]
        if first != name:
            parts.append(f"### {name}.{public}\n\nThe same as `{first}.{public}`.\n")
            continue
        parts.append(_definition(f"{name}.{public}", found.node))
    return "\n".join(parts)


def _definition(name: str, node: ast.ClassDef | _Function) -> str:
    if not isinstance(node, ast.ClassDef):
        return f"### {name}\n\n{_code(node, node.name)}\n{_said(node)}\n"
    methods = [one for one in _methods(node) if not one.name.startswith("_") and ast.get_docstring(one)]
    shown = _FOR_SCRIPTS.get(node.name)
    made = next((one for one in _methods(node) if one.name == "__init__"), None)
    if made is not None and (ast.get_docstring(made) or "").startswith("Made by"):
        made = None
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    head = _code(made, node.name) if made is not None else f"```python\nclass {node.name}({bases})\n```\n"
    parts = [f"### {name}\n", head, _said(node)]
    if made is not None:
        parts.append(_said(made, sections_only=True))
    parts += [_attribute(*one) for one in _attributes(node)]
    parts += [
        f"#### {node.name}.{one.name}\n\n{_code(one, one.name)}\n{_said(one)}"
        for one in methods
        if shown is None or one.name in shown
    ]
    rest = ", ".join(f"`{one.name}`" for one in methods if shown is not None and one.name not in shown)
    if rest:
        parts.append(f"For the engine and integrations, not for scripts: {rest}.\n")
    return "\n".join(part for part in parts if part) + "\n"


def _methods(node: ast.ClassDef) -> list[_Function]:
    methods = [one for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [one for one in methods if not any(_is_setter(mark) for mark in one.decorator_list)]


def _is_setter(mark: ast.expr) -> bool:
    return isinstance(mark, ast.Attribute) and mark.attr == "setter"


def _attributes(node: ast.ClassDef) -> list[tuple[str, str]]:
    found = []
    for one, text in zip(node.body, node.body[1:], strict=False):
        is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and is_text:
            default = f" = {ast.unparse(one.value)}" if one.value is not None else ""
            shown = f"{one.target.id}: {ast.unparse(one.annotation)}{default}"
        elif isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and is_text:
            shown = f"{one.targets[0].id} = {ast.unparse(one.value)}"
        else:
            continue
        if not shown.startswith("_"):
            assert isinstance(text, ast.Expr)
            assert isinstance(text.value, ast.Constant)
            found.append((shown, textwrap.dedent(str(text.value.value))))
    return found


def _attribute(shown: str, text: str) -> str:
    return f"`{shown}`\n:   {_joined(text)}\n"


def _code(node: _Function, name: str) -> str:
    is_property = any(isinstance(mark, ast.Name) and "property" in mark.id for mark in node.decorator_list)
    gives = f" -> {ast.unparse(node.returns)}" if node.returns is not None and name != "__init__" else ""
    if is_property:
        return f"```python\n{name}{gives.replace(' -> ', ': ')}\n```\n"
    given = node.args
    first = (given.posonlyargs + given.args)[:1]
    without_self = [
        one for one in given.args if not (first and one is first[0] and one.arg in ("self", "cls"))
    ]
    shown = ast.arguments(
        posonlyargs=given.posonlyargs,
        args=without_self,
        vararg=given.vararg,
        kwonlyargs=given.kwonlyargs,
        kw_defaults=given.kw_defaults,
        kwarg=given.kwarg,
        defaults=given.defaults,
    )
    if node.name == "__init__":
        gives = ""
    line = f"{name}({ast.unparse(shown)}){gives}"
    if len(line) > 90:
        one_a_line = ast.unparse(shown).split(", ")
        line = f"{name}(\n" + "".join(f"    {part},\n" for part in _balanced(one_a_line)) + f"){gives}"
    return f"```python\n{line}\n```\n"


def _balanced(parts: list[str]) -> list[str]:
    """Join again what was split inside of brackets."""
    whole: list[str] = []
    for part in parts:
        if whole and whole[-1].count("[") + whole[-1].count("(") > whole[-1].count("]") + whole[-1].count(
            ")"
        ):
            whole[-1] += f", {part}"
        else:
            whole.append(part)
    return whole


def _said(node: ast.ClassDef | _Function, *, sections_only: bool = False) -> str:
    """A docstring as Markdown: its sections as lists."""
    said: list[str] = []
    section = ""
    for block in (ast.get_docstring(node) or "").split("\n\n"):
        head, _, rest = block.partition("\n")
        word = head.rstrip(":")
        if head.endswith(":") and word in _SECTIONS and rest:
            section = word
            said.append(_section(word, textwrap.dedent(rest)))
        elif not section and not sections_only:
            said.append(textwrap.indent(block, "    ") if block.startswith("    ") else block)
    return "\n\n".join(said) + "\n" if said else ""


def _section(word: str, text: str) -> str:
    if word in ("Returns", "Yields"):
        return f"{_SECTIONS[word]}: {_joined(text)}"
    rows: list[str] = []
    for line in text.splitlines():
        name, colon, meaning = line.partition(":")
        if not line.startswith(" ") and colon:
            shown = ", ".join(f"`{one.strip()}`" for one in name.split(","))
            rows.append(f"* {shown}: {meaning.strip()}")
        else:
            rows[-1] += f" {line.strip()}"
    return f"{_SECTIONS[word]}:\n\n" + "\n".join(rows)


def _joined(text: str) -> str:
    return " ".join(text.split())


def _tree(module: str) -> ast.Module:
    place = ROOT / module.replace(".", "/")
    return parsed(place / "__init__.py" if place.is_dir() else place.with_suffix(".py"))


def _find(module: str, name: str) -> _Found | None:
    """Where a name is defined, through the imports that lead there."""
    tree = _tree(module)
    defined = [
        node
        for node in tree.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
    ]
    if defined:
        return _Found(module, defined[-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("recovery"):
            for imported in node.names:
                if (imported.asname or imported.name) == name:
                    return _find(node.module, imported.name)
    return None
