"""`import recovery` pulls in nothing heavy; errors have codes of their own; the pages are fresh."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from string import Formatter

import pytest

import recovery
from recovery import errors
from recovery.frameworks import FRAMEWORKS
from tests.house.files import ROOT, Finding, nodes_of, program_files, report
from tests.house.generate_pages import PAGES
from tests.house.generate_settings import PAGE, settings_page

FRAMEWORK = {*(framework.name for framework in FRAMEWORKS), "numpy"}
DATABASE_AND_NETWORK = {"sqlalchemy", "alembic", "aiohttp", "watchdog"}
HEAVY = FRAMEWORK | DATABASE_AND_NETWORK | {"typer", "rich"}
ERRORS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.RecoveryError)
}


def _child(code: str) -> str:
    """What a fresh interpreter prints, untraced."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_import_recovery_imports_nothing_but_the_standard_library_and_the_loader_of_its_names() -> None:
    code = "import sys; before = set(sys.modules); import recovery; print(*(set(sys.modules) - before))"
    loaded = set(_child(code).split())

    assert {name for name in loaded if name.partition(".")[0] == "recovery"} == {
        "recovery",
        "recovery.lazy_names",
    }
    assert {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names == {"recovery"}


def test_import_of_the_errors_pulls_in_no_framework_database_or_network() -> None:
    code = "import sys, recovery, recovery.errors; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in _child(code).split()}

    assert loaded & HEAVY == set()


def test_reading_the_settings_pulls_in_no_framework_database_or_network() -> None:
    code = "import sys, recovery.config, recovery.log, recovery.clock; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in _child(code).split()}

    assert loaded & HEAVY == set()


@pytest.mark.parametrize(
    "start",
    [
        "import recovery; recovery.run; recovery.init",
        "import recovery.launch.command",
        "import recovery.cli.run, recovery.cli.msrun",
    ],
)
def test_a_worker_and_a_launcher_begin_without_database_and_network(start: str) -> None:
    """Half of what they import otherwise: a worker needs them once it is admitted, a launcher after a failure."""
    loaded = {name.partition(".")[0] for name in _child(f"import sys; {start}; print(*sys.modules)").split()}

    assert loaded & (FRAMEWORK | DATABASE_AND_NETWORK) == set()


def test_supervising_a_mindspore_script_pulls_in_no_framework() -> None:
    code = "import sys, recovery.launch.worker_proxy, recovery.mindspore.control_plane; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in _child(code).split()}

    assert loaded & FRAMEWORK == set()


def test_every_public_name_is_loaded_from_its_home() -> None:
    loaded = {name: getattr(recovery, name) for name in recovery.__all__}

    assert len(loaded) == 13
    assert [name for name, what in loaded.items() if getattr(what, "__name__", name) != name] == []


def test_other_packages_enter_the_launcher_by_thirteen_names() -> None:
    package = ROOT / "recovery"
    imported = {
        (node.module, one.name)
        for path in package.rglob("*.py")
        if not path.is_relative_to(package / "launch")
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("recovery.launch.")
        for one in node.names
    }

    assert imported == {
        ("recovery.launch", "console"),
        ("recovery.launch", "flag_values"),
        ("recovery.launch.background", "stop"),
        ("recovery.launch.children", "tied"),
        ("recovery.launch.command", "launch"),
        ("recovery.launch.credentials", "job_token"),
        ("recovery.launch.credentials", "of_viewer"),
        ("recovery.launch.job_spec", "JobSpec"),
        ("recovery.launch.msrun.flags", "FLAGS"),
        ("recovery.launch.msrun.flags", "job_spec"),
        ("recovery.launch.msrun.host_check", "check_host"),
        ("recovery.launch.slurm", "batch_script"),
        ("recovery.launch.slurm.node_address", "reached_at"),
    }


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = recovery.nothing  # type: ignore[attr-defined]  # the test asks for what is not there
    assert set(recovery.__all__) <= set(dir(recovery))


def test_every_error_has_its_own_code_and_exit_code() -> None:
    kinds = {kind: kind.rows for kind in ERRORS.values() if "rows" in kind.__dict__}
    rows = [row for own in kinds.values() for row in own]
    # Rows of one class may share one, and what the launcher does about it.
    exit_codes = [code for own in kinds.values() for code in {row.exit_code for row in own}]
    causes = {row.exit_code: row.cause for row in rows}

    assert len(rows) > 70
    assert sorted(row.code for row in rows) == sorted(errors.ROWS)
    assert len(exit_codes) == len(set(exit_codes))
    assert all(1 <= code <= 125 and code != 2 for code in exit_codes)
    assert all(row.cause is causes[row.exit_code] for row in rows)
    assert all(row.meaning for row in errors.ROWS.values())


def test_every_error_that_is_made_is_a_row_of_its_class_and_has_its_parts() -> None:
    report(
        Finding(
            path, node.lineno, f"{name} is made as {code or 'nothing'} of {sorted(parts)}", "see its rows"
        )
        for path in program_files()
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and (name := _name_of_call(node)) in ERRORS
        for code in ["" if not node.args else getattr(node.args[0], "value", None)]
        if isinstance(code, str)
        for parts in [{one.arg for one in node.keywords if one.arg}]
        if not any(code in ("", row.code) and _parts_of(row) <= parts for row in ERRORS[name].rows)
        or (not code and len(ERRORS[name].rows) > 1)
    )


def _name_of_call(node: ast.Call) -> str:
    return getattr(node.func, "id", "") or getattr(node.func, "attr", "")


def _parts_of(row: errors.Row) -> set[str]:
    return {field for _, field, _, _ in Formatter().parse(row.template) if field}


def test_the_pages_that_come_from_the_code_are_fresh() -> None:
    report(
        Finding(path, 1, "the page is stale", "run: make docs")
        for path, page in {PAGE: settings_page, **PAGES}.items()
        if path.read_text(encoding="utf-8") != page()
    )
