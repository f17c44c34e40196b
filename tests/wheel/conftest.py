"""The built package, and an empty environment that it alone is installed into."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.house.files import ROOT, tracked_files

EPOCH_S = 1_700_000_000
"""The time that every file of the package has."""


class Built(msgspec.Struct, frozen=True):
    """What `python -m build` made."""

    wheel: Path
    archive: Path


def build(source: Path, to: Path) -> Built:
    """Build archive and wheel of a source tree, as `make wheel` does."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(to), str(source)]
    done(command, SOURCE_DATE_EPOCH=str(EPOCH_S))
    [wheel], [archive] = to.glob("*.whl"), to.glob("*.tar.gz")
    return Built(wheel, archive)


def digests(package: Path) -> dict[str, str]:
    """The digest of a package as a whole, under its own name, and of each file in it: what differs can be named."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            parts = {name: wheel.read(name) for name in wheel.namelist()}
    else:
        with tarfile.open(package) as archive:
            files = ((member.name, archive.extractfile(member)) for member in archive)
            parts = {name: file.read() if file else b"" for name, file in files}
    parts[package.name] = package.read_bytes()
    return {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}


def done(command: Sequence[str], **environment: str) -> str:
    """Run a command that must succeed, with nothing of ours in its environment; what it printed."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MS_", "COV", "PYTHON", "VIRTUAL_ENV"))
    }
    found = subprocess.run(
        command,
        env={**kept, **environment},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert found.returncode == 0, f"{command} ended with {found.returncode}\n{found.stdout}\n{found.stderr}"
    return found.stdout


@pytest.fixture(scope="session")
def clean_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files somewhere else, with other times and rights than here."""
    to = tmp_path_factory.mktemp("copy")
    for path in tracked_files():
        copy = to / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        copy.chmod(0o600 | path.stat().st_mode & 0o100)
    return to


@pytest.fixture(scope="session")
def built(clean_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built from the copy."""
    return build(clean_copy, tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="session")
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of a fresh environment with the wheel and what it needs, and no extra."""
    place = tmp_path_factory.mktemp("environment")
    done([sys.executable, "-m", "venv", str(place)])
    commands = place / "bin"
    pip = [str(commands / "python"), "-m", "pip", "--disable-pip-version-check"]
    done([*pip, "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(built.wheel)])
    done([*pip, "check"])
    return commands
