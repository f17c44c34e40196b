"""Write the pages and drawings of docs/ that come from the code: `python -m tests.house.generate_pages`."""

from __future__ import annotations

import ast
from enum import Enum
from string import Formatter
from typing import Any

from recovery.cli.main import COMMANDS, load
from recovery.core.records import EventKind
from recovery.errors import ROWS, RecoveryError
from recovery.report.metrics import METRICS
from recovery.report.tables import VIEWS
from tests.house.api_page import api_page
from tests.house.files import ROOT
from tests.house.generate_drawings import DRAWINGS
from tests.house.protocol_page import protocol_page

_ERRORS_HEAD = """\
# Errors

Every error is one line that begins with its code. The code never changes; the text may. A process that ends by an error of the
engine ends with that error's exit code; the user's own exception ends it with 1, SIGTERM with 143, SIGINT with 130.
In Python every one is a `recovery.errors.RecoveryError` with `code`, `exit_code`, `cause`, `temporary` and the parts of its
sentence in `parts`. What to do about an exit code: [how to](../howto/when_something_fails.md#what-an-exit-code-asks-for).

`cause` is what `recovery msrun` decides by when a process ends with that exit code:

* `temporary`: the process is started again.
* `permanent`: the same command would end the same way, so the job fails.
* `unknown`: the job fails if it was the process's first start (a mistake in the command); later the process is started again
  (trouble of the machine).
* `script`: as after an exception of the script's own, the process is started again once the job has made a step, unless it ends with
  the same tracebacks, or the same last line of output, soon after.

Starting again has its bounds: `--max_restarts`, and longer waits each time.

| code | exit code | meaning | cause | sentence |
|---|---|---|---|---|
"""
_EVENTS_HEAD = """\
# Events

The event log of a job. The same word stands in the log (`event=...`), in the table `events` of `scheduler.db` and in JSON.
An event names what applies to it: node, rank, incarnation, run, generation, step, reason, details; `because` is the loss that an
interrupted world is recovering from.

| event | meaning |
|---|---|
"""


def errors_page() -> str:
    """The whole page, by exit code."""
    of_no_kind = RecoveryError.rows
    rows = [
        f"| `{row.code}` | {row.exit_code} | {row.meaning.replace('|', 'or')} | {row.cause.value} | {_sentence(row.template)} |"
        for row in sorted(ROWS.values(), key=lambda one: one.exit_code)
        if row.code not in {one.code for one in of_no_kind}
    ]
    return _ERRORS_HEAD + "\n".join(rows) + "\n"


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


_METRICS_HEAD = """\
# Metrics

What `GET /metrics` on the scheduler's port and `recovery metrics PATH` tell Prometheus: [how to](../howto/metrics.md). Names and labels are never
changed. A metric whose figure is not known is left out. The figures are of the job's newest run.

| metric | type | label | unit | meaning |
|---|---|---|---|---|
"""


def metrics_page() -> str:
    """The whole page: every metric, and what its label may say."""
    rows = [
        f"| `{row.name}` | {row.kind.value} | {f'`{row.label}`' if row.label else ''} | {row.unit} | {row.meaning} |\n"
        for row in METRICS
    ]
    words = [
        f"\n## {row.label} of {row.name}\n\n| {row.label} | meaning |\n|---|---|\n"
        + "".join(f"| `{word}` | {meaning} |\n" for word, meaning in row.words.items())
        for row in METRICS
        if row.words
    ]
    return _METRICS_HEAD + "".join([*rows, *words])


_FLAGS_HEAD = """\
# Flags of `recovery msrun`

Hyphens and underscores mean the same. A wrong value is one line that names flag, value, rule and what to type instead; nothing has been
started then. What comes after the script is the script's own.

| flag | also | default | meaning |
|---|---|---|---|
"""


def flags() -> list[Any]:
    """The options of `recovery msrun`, in the order of --help."""
    return [
        one
        for one in load("msrun").params
        if one.param_type_name == "option" and not one.hidden and one.name != "help"
    ]


def flags_page() -> str:
    """The whole page, in the order of --help."""
    return _FLAGS_HEAD + "".join(
        f"| `{flag.opts[0]}` | {', '.join(f'`{word}`' for word in flag.opts[1:])} | {_default(flag.default)} | {flag.help} |\n"
        for flag in flags()
    )


def _default(value: object) -> str:
    """As it would be typed."""
    return "" if value is None else f"`{value.value if isinstance(value, Enum) else value}`"


_CLI_HEAD = """\
# The `recovery` command

`recovery COMMAND --help` says the same. What is stored is read while nothing runs, or beside a running job without disturbing it.
Errors are one line on stderr, with the [exit code](errors.md) of their kind; a check that found something ends with 1. Without a
terminal, and with `NO_COLOR`, there are no colour codes; `FORCE_COLOR` gives them to a pipe.

`recovery --install-completion` makes the shell (bash, zsh, fish) complete commands and options from its next start on; `recovery
--show-completion` prints what it would install.

"""


def cli_page() -> str:
    """Every command with its options, and the keys of its rows."""
    parts = [_CLI_HEAD]
    for command in (load(row.name) for row in COMMANDS):
        parts.append(f"## recovery {command.name}\n\n{(command.help or '').strip()}\n")
        rows = [_parameter(one) for one in command.params if one.name != "help"]
        if command.name == "msrun":
            parts.append("Its flags: [launcher flags](launcher_flags.md).\n")
        elif rows:
            parts.append("| parameter | meaning |\n|---|---|\n" + "\n".join(rows) + "\n")
    parts.append(
        "## Keys of rows\n\nFor `--json`, `--format=ndjson` and `--format=csv`. They are never renamed.\n"
    )
    for view in VIEWS:
        keys = "\n".join(f"| `{column.key}` | {column.meaning} |" for column in view.columns)
        parts.append(f"### {view.name}\n\n{view.meaning}\n\n| key | meaning |\n|---|---|\n{keys}\n")
    return "\n".join(parts)


def _parameter(one: Any) -> str:
    shown = (
        ", ".join(f"`{word}`" for word in one.opts)
        if one.param_type_name == "option"
        else f"`{one.name.upper()}`"
    )
    return f"| {shown} | {(getattr(one, 'help', '') or '').replace('|', 'or')} |"


PAGES = {
    ROOT / "docs/reference/api.md": api_page,
    ROOT / "docs/reference/errors.md": errors_page,
    ROOT / "docs/reference/events.md": events_page,
    ROOT / "docs/reference/launcher_flags.md": flags_page,
    ROOT / "docs/reference/metrics.md": metrics_page,
    ROOT / "docs/reference/cli.md": cli_page,
    ROOT / "docs/reference/protocol.md": protocol_page,
    **DRAWINGS,
}


def main() -> None:
    """Write them all."""
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
