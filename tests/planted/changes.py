"""Which rows a change concerns: those whose code or whose catcher differs from an earlier commit's."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.planted.bug import Bug

BASE = "GATE_BASE"
"""The environment variable that names the commit to compare with."""
_DAY_S = 86_400


class Choice(NamedTuple):
    """The rows to plant, and why these."""

    bugs: list[Bug]
    why: str


def choose(bugs: Sequence[Bug], root: Path, rev: str, *, most: int) -> Choice:
    """At most so many of the rows that have changed since `rev` and whose tests end; of all, where git does not know it.

    Args:
        bugs: the rows to choose from.
        root: of the working tree.
        rev: a commit; empty: there is none to compare with.
        most: of more than these, a part is taken that only depends on the rows and on what is committed.
    """
    changed = changed_files(root, rev) if rev else None
    if changed is None:
        concerned, of = list(bugs), "git knows no commit to compare with, so that all rows are concerned"
        tree = ""
    else:
        table = _git(root, "grep", "-h", "", rev, "--", "tests/planted") or ""
        concerned = [bug for bug in bugs if not changed.isdisjoint(files_of(bug)) or bug.name not in table]
        of = f"of {len(bugs)} rows, {len(concerned)} are concerned by what changed since {rev}"
        tree = _git(root, "rev-parse", "HEAD^{tree}") or ""
    short = [bug for bug in concerned if not bug.hangs]
    chosen = spread(short, tree, most=most)
    return Choice(
        chosen,
        f"{of}: {len(chosen)} are planted, {len(short) - len(chosen)} left out by the bound of {most},"
        f" {len(concerned) - len(short)} because their tests only hang",
    )


def base_of(root: Path, environment: Mapping[str, str]) -> str:
    """What `GATE_BASE` names, or the newest commit at least a day older than HEAD on its first-parent line; empty: there is none."""
    if named := environment.get(BASE):
        return named
    lines = (_git(root, "log", "--first-parent", "--format=%H %ct") or "").split("\n")
    commits = [(one, int(seconds)) for one, _, seconds in (line.partition(" ") for line in lines) if one]
    return next((one for one, seconds in commits if seconds <= commits[0][1] - _DAY_S), "")


def changed_files(root: Path, rev: str) -> frozenset[str] | None:
    """The files that differ between a commit and the working tree, untracked ones included; None: git does not know the commit."""
    differ = _git(root, "diff", "--name-only", "--no-renames", "-z", rev, "--")
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    if differ is None or untracked is None:
        return None
    return frozenset(name for name in (differ + untracked).split("\0") if name)


def files_of(bug: Bug) -> frozenset[str]:
    """The file that is mutated, and those of the tests that notice it."""
    return frozenset({f"recovery/{bug.file}", *(test.partition("::")[0] for test in bug.caught_by)})


def spread(bugs: Sequence[Bug], salt: str, *, most: int) -> list[Bug]:
    """At most so many rows, in the table's order: one of each file, then a second one of each, in an order that `salt` shuffles."""

    def mixed(text: str) -> str:
        return hashlib.sha256(f"{salt} {text}".encode()).hexdigest()

    turns: dict[str, list[Bug]] = {}
    for bug in sorted(bugs, key=lambda one: mixed(one.name)):
        turns.setdefault(bug.file, []).append(bug)
    ranked = sorted(
        (turn, mixed(file), bug.name) for file, rows in turns.items() for turn, bug in enumerate(rows)
    )
    taken = {name for _, _, name in ranked[:most]}
    return [bug for bug in bugs if bug.name in taken]


def _git(root: Path, *arguments: str) -> str | None:
    """What git prints; None: it fails, or is not there."""
    # A hook of git names the repository of its own in the environment.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, env=clean, capture_output=True, text=True, check=False, timeout=600
        )
    except OSError:
        return None
    return None if done.returncode else done.stdout
