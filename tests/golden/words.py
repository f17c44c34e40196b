"""The words that programs and people hold on to: settings, errors with their exit codes, events, states, commands, flags, keys of rows."""

from __future__ import annotations

import ast
import re
from enum import Enum
from pathlib import Path
from typing import Any

import recovery
from recovery.cli.main import COMMANDS, load
from recovery.config.table import SETTINGS
from recovery.core.messages import JobOutcome, Role
from recovery.core.records import CheckpointState, EventKind, JobState, NodeState
from recovery.errors import ROWS
from recovery.report.tables import VIEWS
from recovery.store.models import METADATA
from tests.house.generate_pages import flags
from tests.house.protocol_words import REFUSALS

_ENUMS: dict[str, type[Enum]] = {
    "events": EventKind,
    "job_states": JobState,
    "node_states": NodeState,
    "checkpoint_states": CheckpointState,
    "roles": Role,
}


def words() -> dict[str, Any]:
    """All of them, by what they are: `{"settings": {"MS_ROLE": {...}, ...}, "errors": {...}, ...}`."""
    return {
        "settings": {
            one.name: {
                "default": one.default,
                "choices": list(one.choices),
                "low": one.low,
                "high": one.high,
                "fate": one.fate.value,
            }
            for one in SETTINGS
        },
        "errors": {
            code: {"exit_code": row.exit_code, "cause": row.cause.value, "temporary": row.temporary}
            for code, row in sorted(ROWS.items())
        },
        **{name: [one.value for one in kind] for name, kind in _ENUMS.items()},
        "job_outcomes": {one.value: one.code for one in JobOutcome},
        "log_events": log_events(Path(recovery.__file__).parent),
        "refusals": list(REFUSALS),
        "commands": _commands(),
        "flags": {one.name: sorted(word.removeprefix("--") for word in one.opts[1:]) for one in flags()},
        "rows": {view.name: [column.key for column in view.columns] for view in VIEWS},
        "tables": {
            name: [column.name for column in table.columns] for name, table in METADATA.tables.items()
        },
    }


def log_events(package: Path) -> list[str]:
    """Every `event=...` that a log line can begin with, as the sources spell it."""
    found: set[str] = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.update(re.findall(r"\bevent=(\w+)", node.value))
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in {"Say", "Log"}
            ):
                found.update(
                    one.value
                    for one in node.args[:1]
                    if isinstance(one, ast.Constant) and isinstance(one.value, str)
                )
    return sorted(found)


def _commands() -> dict[str, list[str]]:
    return {
        row.name: sorted(option for one in load(row.name).params if one.name != "help" for option in one.opts)
        for row in COMMANDS
    }
