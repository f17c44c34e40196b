"""The package as a user gets it: the same bytes from the same source, complete, and of use where nothing else is installed."""

from __future__ import annotations

import email
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

import recovery
from recovery.frameworks import FRAMEWORKS
from tests.golden.views import unpacked
from tests.house.files import ROOT, name_of, tracked_files
from tests.wheel.conftest import Built, build, digests, done

pytestmark = pytest.mark.wheel

FRAMEWORK = {framework.name for framework in FRAMEWORKS}
"""The doctor tells people to install the extra of this name."""
EXTRAS = FRAMEWORK | {
    "accelerate",
    "mlflow",
    "otel",
    "tensorboard",
    "transformers",
    "wandb",
    "objects",
    "png",
    "ray",
    "weights",
    "docs",
    "fuzz",
    "examples",
    "dev",
}
NOT_NEEDED = (*FRAMEWORK, "numpy", "PIL", "pytest")
LOOKED_UP = "import importlib.util, json, sys; print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name)]))"


def test_the_same_source_gives_the_same_bytes(built: Built, tmp_path: Path) -> None:
    again = build(ROOT, tmp_path)

    assert again.wheel.name == built.wheel.name
    assert digests(again.wheel) == digests(built.wheel)
    assert digests(again.archive) == digests(built.archive), "files that git does not track may lie around"


def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        found = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert found == {name_of(path) for path in tracked_files() if path.is_relative_to(ROOT / "recovery")}
    assert "recovery/py.typed" in found
    assert any(name.startswith("recovery/store/migrations/versions/") for name in found)


def test_the_wheel_says_what_it_is(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        [place] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        facts = email.message_from_bytes(wheel.read(place))
        names = wheel.namelist()

    assert (facts["Name"], facts["Version"]) == ("recovery-engine", recovery.__version__)
    assert set(facts.get_all("Provides-Extra", [])) == EXTRAS
    assert bytes(facts.get_payload(decode=True)).strip() == (ROOT / "README.md").read_bytes().strip()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_archive_holds_what_is_needed_to_build_and_test_it(built: Built) -> None:
    with tarfile.open(built.archive) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}

    kept = {name_of(path) for path in tracked_files()}
    assert kept - found == set()
    assert found - kept == {"PKG-INFO"}


@pytest.mark.slow
def test_the_command_and_the_package_are_there_without_any_extra(environment: Path) -> None:
    command = str(environment / "recovery")

    assert done([command, "--version"]) == f"recovery-engine {recovery.__version__}\n"
    assert "msrun" in done([command, "--help"])
    assert done(
        [str(environment / "python"), "-c", "import recovery; print(recovery.__version__)"]
    ).split() == [recovery.__version__]
    assert json.loads(done([str(environment / "python"), "-c", LOOKED_UP, *NOT_NEEDED])) == []


@pytest.mark.slow
def test_the_installed_command_looks_at_a_job_and_at_its_machine(environment: Path, tmp_path: Path) -> None:
    command = str(environment / "recovery")
    path = unpacked(ROOT / "tests/golden/2026-11-22/killed.tar.xz", tmp_path)

    assert json.loads(done([command, "status", str(path), "--json"]))["state"] == "running"
    assert json.loads(done([command, "verify", str(path), "--json"])) == []
    job = {"MS_ROLE": "MS_SCHED", "MS_WORKER_NUM": "2", "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": "8118"}
    assert json.loads(done([command, "env", "--json"], **job))[0]["value"] == "MS_SCHED"
