"""Write docs/errors.md, docs/events.md and docs/launcher_flags.md from the code: `python -m tests.house.generate_pages`."""

from __future__ import annotations

import ast
from string import Formatter

from recovery import errors
from recovery.core.records import EventKind
from recovery.launch.arguments import FLAGS, shown
from tests.house.files import ROOT

_ERRORS_HEAD = """\
# Errors

Every error is one line that begins with its code. The code never changes; the text may. A process that ends by an error of the
engine ends with that error's exit code; the user's own exception ends it with 1, SIGTERM with 143, SIGINT with 130.
In Python every one is a `recovery.errors.RecoveryError` with `code`, `exit_code`, `temporary` and the parts of its sentence in `parts`.

| code | exit code | meaning | temporary | sentence |
|---|---|---|---|---|
"""
_EVENTS_HEAD = """\
# Events

The story of a job. The same word stands in the log (`event=...`), in the table `events` of `scheduler.db` and in JSON.
An event names what applies to it: node, rank, incarnation, run, generation, step, reason, details; `because` is the loss that an
interrupted world is recovering from.

| event | meaning |
|---|---|
"""


def errors_page() -> str:
    """The whole page, by exit code."""
    found, waiting = [], [errors.RecoveryError]
    while waiting:
        waiting.extend((kind := waiting.pop()).__subclasses__())
        if (
            "code" in kind.__dict__
            and kind.__module__ == errors.__name__
            and kind is not errors.RecoveryError
        ):
            found.append(kind)
    rows = [
        f"| `{kind.code}` | {kind.exit_code} | {_first_line(kind.__doc__)} | {'yes' if kind.temporary else 'no'} | {_sentence(kind.template)} |"
        for kind in sorted(found, key=lambda one: one.exit_code)
    ]
    return _ERRORS_HEAD + "\n".join(rows) + "\n"


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0].replace("|", "or")


def _sentence(template: str) -> str:
    """The template with its parts in angle brackets: code spans, so that Markdown leaves them alone."""
    text = "".join(
        literal + (f"<{field}>" if field else "") for literal, field, _, _ in Formatter().parse(template)
    )
    return f"`{text}`"


def events_page() -> str:
    """The whole page, in the order in which a job meets them."""
    source = ast.parse((ROOT / "recovery/core/records.py").read_text(encoding="utf-8"))
    [kinds] = [
        node for node in source.body if isinstance(node, ast.ClassDef) and node.name == EventKind.__name__
    ]
    said: dict[str, str] = {}
    for member, text in zip(kinds.body, kinds.body[1:], strict=False):
        if (
            isinstance(member, ast.Assign)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            [name] = [target.id for target in member.targets if isinstance(target, ast.Name)]
            said[name] = str(text.value.value)
    return _EVENTS_HEAD + "".join(f"| `{kind.value}` | {said[kind.name]} |\n" for kind in EventKind)


_FLAGS_HEAD = """\
# Flags of `recovery msrun`

Hyphens and underscores mean the same. A wrong value is one line that names flag, value, rule and what to type instead; nothing has been
started then. What comes after the script is the script's own.

| flag | also | default | meaning |
|---|---|---|---|
"""


def flags_page() -> str:
    """The whole page, in the order of --help."""
    return _FLAGS_HEAD + "".join(
        f"| `--{flag.name}` | {', '.join(f'`--{name}`' for name in flag.aliases)} | {_default(flag.default)} | {flag.help} |\n"
        for flag in FLAGS
    )


def _default(value: object) -> str:
    return "" if value is None else f"`{shown(value)}`"


PAGES = {
    ROOT / "docs/errors.md": errors_page,
    ROOT / "docs/events.md": events_page,
    ROOT / "docs/launcher_flags.md": flags_page,
}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
        print(f"wrote {path.name}")
