"""Write docs/reference/settings.md from the table of settings: `python -m tests.house.generate_settings`."""

from __future__ import annotations

from pathlib import Path

from recovery.config.setting import Fate, Setting
from recovery.config.table import GROUPS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"

_HEAD = """\
# Settings

All settings are environment variables, read once when a process starts. This page is generated from
`recovery/config/table.py` by `make docs`; do not edit it.

- A wrong value ends the process with one line that names variable, value, rule and what to type instead, and with the exit
  code of its kind: 20 missing or empty (`SETTING_MISSING`), 21 not of its kind (`SETTING_TYPE`), 22 outside its range or set
  (`SETTING_RANGE`), 23 two that exclude each other (`SETTING_CONFLICT`).
- Numbers are written in ASCII digits, without spaces, exponents or a plus sign.
- A variable that is set to nothing is an error, not a default: it usually comes from a script whose own variable was unset.
- MS_SCHED_HOST, MS_SCHED_PORT, MS_WORKER_NUM and MS_SERVER_NUM must be the same in every process of the job.
"""


def settings_page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(_group(title, rows) for title, rows in GROUPS)])


def _group(title: str, rows: tuple[Setting, ...]) -> str:
    """One section with its table."""
    head = [f"## {title}", ""]
    if all(row.fate is Fate.HONOURED for row in rows):
        head += ["| variable | default | must be set | rule | meaning | fate |", "|---|---|---|---|---|---|"]
        lines = [
            f"| `{row.name}` | {_code(row.default)} | {row.required or 'no'} | {row.rule} | {row.meaning} | {row.fate.value} |"
            for row in rows
        ]
    else:
        head += ["| variable | meaning | fate |", "|---|---|---|"]
        lines = [f"| `{row.name}` | {row.meaning} | {_fate(row)} |" for row in rows]
    return "\n".join([*head, *lines, ""])


def _code(text: str) -> str:
    return f"`{text}`" if text else "none"


def _fate(row: Setting) -> str:
    return f"{row.fate.value}, because {row.because}" if row.because else f"{row.fate.value} untouched"


if __name__ == "__main__":
    PAGE.write_text(settings_page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
