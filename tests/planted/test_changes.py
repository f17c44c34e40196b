"""Which rows a change concerns, in small repositories of their own."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.planted.bug import Bug
from tests.planted.changes import base_of, changed_files, choose, spread

_DAY_S = 86_400
_NOW_S = 2_000_000_000


def _bug(name: str, file: str, catcher: str) -> Bug:
    return Bug(name, "I1", file, "f", "a", "b", (f"tests/{catcher}::test_it[1]",))


BUGS = [
    _bug("one", "a.py", "test_a.py"),
    _bug("two", "b.py", "test_b.py"),
    _bug("three", "b.py", "test_c.py"),
]


class Repository:
    """A repository in which every row's name, code and catcher is committed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "--quiet", "--initial-branch=main")
        for name in (
            "recovery/a.py",
            "recovery/b.py",
            "tests/test_a.py",
            "tests/test_b.py",
            "tests/test_c.py",
        ):
            self.write(name, "")
        self.write("tests/planted/rows.py", " ".join(bug.name for bug in BUGS))

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def git(self, *arguments: str, at_s: int = _NOW_S) -> str:
        who = {
            f"GIT_{one}_{what}": "tester@localhost"
            for one in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        when = {"GIT_AUTHOR_DATE": f"{at_s} +0000", "GIT_COMMITTER_DATE": f"{at_s} +0000"}
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.root,
            env=clean | who | when | quiet,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def commit(self, at_s: int = _NOW_S) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message=one more", at_s=at_s)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_the_base_is_the_newest_commit_at_least_a_day_older_on_the_first_parent_line(
    repository: Repository,
) -> None:
    repository.commit(_NOW_S - 3 * _DAY_S)
    a_day_before = repository.commit(_NOW_S - _DAY_S)
    repository.git("checkout", "--quiet", "-b", "aside", a_day_before)
    repository.commit(_NOW_S - _DAY_S)
    repository.git("checkout", "--quiet", "main")
    repository.commit(_NOW_S - _DAY_S + 1)
    repository.git("merge", "--quiet", "--no-ff", "--message=join", "aside")

    assert base_of(repository.root, {}) == a_day_before
    assert base_of(repository.root, {"GATE_BASE": "main~1"}) == "main~1"


def test_a_history_of_less_than_a_day_has_no_base(repository: Repository) -> None:
    assert base_of(repository.root, {}) == ""
    repository.commit(_NOW_S - _DAY_S + 1)
    repository.commit()

    assert base_of(repository.root, {}) == ""


def test_what_is_committed_changed_removed_and_untracked_since_then_has_changed(
    repository: Repository,
) -> None:
    repository.write(".gitignore", "ignored\n")
    rev = repository.commit()
    repository.write("committed", "")
    repository.commit()
    repository.write("recovery/a.py", "changed")
    repository.write("tests/new.py", "")
    repository.write("ignored", "")
    (repository.root / "recovery/b.py").unlink()

    changed = frozenset({"committed", "recovery/a.py", "recovery/b.py", "tests/new.py"})
    assert changed_files(repository.root, rev) == changed
    assert changed_files(repository.root, "0" * 40) is None


def test_rows_whose_code_or_catcher_has_changed_are_chosen_and_those_that_are_new(
    repository: Repository,
) -> None:
    rev = repository.commit()
    assert choose(BUGS, repository.root, rev, most=9).bugs == []

    repository.write("tests/test_a.py", "changed")
    assert [bug.name for bug in choose(BUGS, repository.root, rev, most=9).bugs] == ["one"]
    repository.write("recovery/b.py", "changed")
    assert choose(BUGS, repository.root, rev, most=9).bugs == BUGS
    repository.git("checkout", "--quiet", ".")
    new = _bug("four", "c.py", "test_c.py")
    assert choose([*BUGS, new], repository.root, rev, most=9).bugs == [new]


def test_of_too_many_rows_some_of_each_file_are_chosen_and_the_rest_is_counted(
    repository: Repository,
) -> None:
    rev = repository.commit()
    repository.write("recovery/a.py", "changed")
    repository.write("recovery/b.py", "changed")

    choice = choose(BUGS, repository.root, rev, most=2)

    assert Counter(bug.file for bug in choice.bugs) == {"a.py": 1, "b.py": 1}
    assert choice.why == (
        f"of 3 rows, 3 are concerned by what changed since {rev}: 2 are planted, 1 left out by the bound of 2,"
        " 0 because their tests only hang"
    )
    assert choose(BUGS, repository.root, rev, most=2) == choice


@pytest.mark.parametrize("rev", ["", "0" * 40, "no-such-branch"])
def test_where_git_knows_no_such_commit_the_same_rows_are_chosen_each_time(tmp_path: Path, rev: str) -> None:
    first = choose(BUGS, tmp_path, rev, most=2)

    assert len(first.bugs) == 2
    assert first.why == (
        "git knows no commit to compare with, so that all rows are concerned: 2 are planted, 1 left out by the bound of 2,"
        " 0 because their tests only hang"
    )
    assert choose(BUGS[::-1], tmp_path, rev, most=2).bugs[::-1] == first.bugs


def test_a_row_whose_test_only_hangs_is_not_chosen_and_counted(tmp_path: Path) -> None:
    hangs = BUGS[0]._replace(hangs=True)

    choice = choose([hangs, *BUGS[1:]], tmp_path, "", most=9)

    assert choice.bugs == BUGS[1:]
    assert choice.why.endswith("1 because their tests only hang")


def test_another_tree_has_other_rows_of_a_file_in_time() -> None:
    bugs = [_bug(str(number), "a.py", "test_a.py") for number in range(10)]

    chosen = {bug.name for tree in range(100) for bug in spread(bugs, str(tree), most=1)}

    assert chosen == {bug.name for bug in bugs}
