"""What no worker could run is refused before anything starts: a program that one process alone can read would be none for each, and end with 0."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from recovery.launch.program_check import find_fault
from tests.store.test_store_file_systems import another_user

_ONE_READS = "which one process can read, and every worker needs the program"


@pytest.fixture(autouse=True)
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "train").write_text("")
    for name in ("empty", "package", "program"):
        (tmp_path / name).mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "inner.py").write_text("")
    (tmp_path / "changing").mkdir()
    (tmp_path / "changing" / "__init__.py").write_text("import sys\nsys.modules[__name__ + '.made'] = sys\n")
    (tmp_path / "gone.py").symlink_to("nowhere.py")
    (tmp_path / "program" / "__main__.py").write_text("")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "linked.py").symlink_to("train.py")
    return tmp_path


def said_of(place: Path, *words: str) -> str:
    fault = find_fault(["python", *words], place)
    return "" if fault is None else f"{fault.value}: {fault.rule}. {fault.next_step}"


@pytest.mark.parametrize(
    "words",
    [
        ("train.py", "-"),
        ("train",),
        ("linked.py",),
        ("program",),
        ("-u", "train.py"),
        ("-c", "print()", "-"),
        ("-uc", "print()"),
        ("-m", "pytest", "train.py"),
        ("-m", "package.inner"),
        ("-m", "program"),
        ("-m", "changing.made"),
        ("-m", "os.path"),
        ("-m", "torch.distributed.run"),
        ("-m", "json.tool"),
        ("-I", "-m", "only_there"),
        ("--version",),
    ],
    ids=" ".join,
)
def test_what_a_worker_can_run_is_started(place: Path, words: tuple[str, ...]) -> None:
    assert said_of(place, *words) == ""


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("-",), f"-: is standard input, {_ONE_READS}. Save it as a file, and give its path."),
        (("-u", "-", "3"), f"-u - 3: is standard input, {_ONE_READS}. Save it as a file, and give its path."),
        ((), f"python: is standard input, {_ONE_READS}. Save it as a file, and give its path."),
        (
            ("-W", "error"),
            f"-W error: is standard input, {_ONE_READS}. Save it as a file, and give its path.",
        ),
        (("pipe",), f"pipe: is no plain file, {_ONE_READS}. Save it as a file, and give its path."),
        (("trian",), "trian: there is no such file here. Give the path of the script, perhaps train.py."),
        (("no/such",), "no/such: there is no such file here. Give the path of the script."),
        (("train.py/x",), "train.py/x: there is no such file here. Give the path of the script."),
        (("a\0b",), "a\0b: there is no such file here. Give the path of the script."),
        (("empty",), "empty: is a directory without a __main__.py. Give the path of the script."),
        (
            ("loop",),
            (
                "loop: it cannot be looked at (Too many levels of symbolic links). "
                "Give a script that this user may read."
            ),
        ),
        (
            ("gone.py",),
            "gone.py: is a link to a file that is not there. Fix the link, or give the script's path.",
        ),
        (
            ("-m", "package"),
            "package: is a package without a __main__. Give the name of a module that can be run.",
        ),
        (
            ("-m", "package.no_such"),
            "package.no_such: there is no such module. Give the name of a module that this Python finds.",
        ),
        (
            ("-m", "os.no_such"),
            "os.no_such: there is no such module. Give the name of a module that this Python finds.",
        ),
        (
            ("-m", "train.py"),
            "train.py: there is no such module. Give the name of a module that this Python finds.",
        ),
        (
            ("-m", "empty"),
            "empty: is a package without a __main__. Give the name of a module that can be run.",
        ),
        (
            ("-m", "no_such.module"),
            "no_such.module: there is no such module. Give the name of a module that this Python finds.",
        ),
    ],
)
def test_what_no_worker_can_run_is_refused(place: Path, words: tuple[str, ...], answer: str) -> None:
    assert said_of(place, *words) == answer


@pytest.mark.root
def test_a_script_that_this_user_may_not_read_is_refused() -> None:
    with another_user() as place:
        (place / "train.py").write_text("")
        (place / "train.py").chmod(0)
        said = said_of(place, "train.py")
    assert said == "train.py: this user may not read it. Give a script that this user may read."


def test_an_open_file_of_this_process_is_another_ones_own(place: Path) -> None:
    """Behind `/dev/stdin < train.py` lies a plain file, and a worker's standard input is empty."""
    with (place / "train.py").open() as script:
        (place / "link").symlink_to(f"/proc/self/fd/{script.fileno()}")
        for name in (f"/proc/self/fd/{script.fileno()}", f"/dev/fd/{script.fileno()}", "link"):
            assert _ONE_READS in said_of(place, name)


@pytest.mark.parametrize("words", [["-"], ["/dev/stdin"], ["python"]], ids=" ".join)
def test_a_command_that_reads_its_script_from_standard_input_is_no_success(
    place: Path, words: list[str]
) -> None:
    """It ended with 0, and nothing had run."""
    command = [sys.executable, "-m", "recovery", "run", "--standalone", "--nproc-per-node=1", *words]
    with (place / "train.py").open() as script:
        done = subprocess.run(
            command, check=False, cwd=place, stdin=script, stderr=subprocess.PIPE, text=True, timeout=300
        )
    assert done.returncode == 22
    assert _ONE_READS in done.stderr
    assert not (place / "logs").exists()


def test_an_archive_is_a_program_by_the_main_in_it(tmp_path: Path) -> None:
    for name, member in (("app.pyz", "__main__.py"), ("data.zip", "data.py")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(member, "import os\n")
    assert find_fault([sys.executable, "app.pyz"], tmp_path) is None
    fault = find_fault([sys.executable, "data.zip"], tmp_path)
    assert fault is not None
    assert fault.rule == "is an archive without a __main__.py"
