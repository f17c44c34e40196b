"""A forked program and a spawned one find the same where they first import what the template has imported, whatever they changed before."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from recovery.launch.forkserver.fork_messages import Prepare
from recovery.launch.forkserver.template import Template
from recovery.launch.preload import prepare_for
from recovery.launch.python_command import parse_python_command
from recovery.launch.script_imports import parse_script
from tests.launch.forking import forked, ready_template, spawned
from tests.needs import needs_root
from tests.small_disk import dead_mount

PACKAGE = """
import ctypes, os
seen = os.environ.get('OMP_NUM_THREADS')
uses_the_programs_library = hasattr(ctypes.CDLL(None), 'PyInit__umath_tests')
try: import local_settings
except ImportError: pass
"""
GIVEN_UP = "event=fork_given_up reason="


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installed packages: `first` and `second` look at the environment, `third` imports both, `lazy` imports `second` when it is asked to."""
    directory = tmp_path_factory.mktemp("packages")
    for name in ("first", "second"):
        (directory / f"{name}.py").write_text(PACKAGE)
    (directory / "probes.py").write_text(
        "from importlib.util import find_spec\nspecs = map(find_spec, ('optional', 'loads', 'spare'))\n"
        "found = [spec and (spec.origin or [*spec.submodule_search_locations]) for spec in specs]\n"
    )
    (directory / "spare.py").write_text("")
    (directory / "words.py").write_text("import sys\nseen = sys.argv[:]\n")
    (directory / "third").mkdir()
    (directory / "third" / "__init__.py").write_text("import second\nfrom first import seen\n")
    (directory / "third" / "below.py").write_text("")
    (directory / "loads.py").write_text("import os\ndef load_dotenv(): os.environ['OMP_NUM_THREADS'] = '1'\n")
    return directory


def environment_of(packages: Path) -> dict[str, str]:
    path = os.pathsep.join((str(packages), *filter(None, [os.environ.get("PYTHONPATH")])))
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


NAMES = ("third", "first", "second", "third.below", "probes", "words", "loads", "recovery")


@pytest.fixture(scope="module")
def template(packages: Path) -> Iterator[Template]:
    prepare = Prepare(
        modules=NAMES,
        compared=tuple({name.partition(".")[0] for name in NAMES}),
        argv=(b"train.py", b"--epochs", b"3"),
        of_one=("RANK",),
    )
    with ready_template(prepare, environment_of(packages)) as made:
        yield made


def both(template: Template, packages: Path, directory: Path, *words: str) -> tuple[list[str], list[str]]:
    """What was given up, and what the program printed; forked and spawned print the same, and end alike."""
    environment = {**environment_of(packages), "RANK": "3"}
    fork = forked(template, directory, *words, environment=environment)
    spawn = spawned(directory, *words, environment=environment)
    lines = fork[1].splitlines()
    said = [line for line in lines if line.startswith(GIVEN_UP)]
    assert (fork[0], [line for line in lines if line not in said]) == (spawn[0], spawn[1].splitlines())
    return said, spawn[1].splitlines()


SHOWS = "\nimport first, os, sys\nprint(first.seen, first.uses_the_programs_library, os.environ['RANK'], sys.argv[1:], os.getcwd())\n"
CHANGES = {
    "import os\nos.environ['OMP_NUM_THREADS'] = '1'": "the environment (OMP_NUM_THREADS)",
    "from os import environ\nenviron.setdefault('A', '1')": "the environment (A)",
    "import os\nos.putenv('A', '1')": "the environment (A)",
    "def main():\n    import os\n    os.environ.pop('RANK')\n    os.environ['RANK'] = '4'\nmain()": "the environment (RANK)",
    "import helper": "the environment (OMP_NUM_THREADS)",
    "from loads import load_dotenv\nload_dotenv()": "the environment (OMP_NUM_THREADS)",
    "import recovery, os\nos.environ['A'] = '1'": "the environment (A)",
    "import sys\nsys.path.insert(0, 'elsewhere')": "elsewhere/local_settings.py has the name of a module",
    "import sys\nsys.path.pop()": "sys.path",
    "import sys\nsys.modules['local_settings'] = sys": "sys.modules (local_settings)",
    "import importlib.abc, sys\nclass F(importlib.abc.MetaPathFinder):\n    def find_spec(self, *_): return None\nsys.meta_path.insert(0, F())": "sys.meta_path",
    "import ctypes\nctypes.CDLL('./libmine.so', ctypes.RTLD_GLOBAL)": "what ctypes has loaded with RTLD_GLOBAL (./libmine.so)",
    "import os, sys\nsys.setdlopenflags(sys.getdlopenflags() | os.RTLD_GLOBAL)": "sys.getdlopenflags()",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_before_an_import_is_found_there(
    template: Template, packages: Path, tmp_path: Path, change: str
) -> None:
    (tmp_path / "helper.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '1'\n")
    library = find_spec("numpy._core._umath_tests")
    assert library is not None
    shutil.copy(str(library.origin), tmp_path / "libmine.so")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "local_settings.py").write_text("")
    (tmp_path / "train.py").write_text(change + SHOWS)
    [said], [shown] = both(template, packages, tmp_path, "train.py", "--epochs", "3")
    assert CHANGES[change] in said
    assert shown.endswith(f"['--epochs', '3'] {tmp_path}")


def test_a_change_between_two_imports_is_found_at_the_second(
    template: Template, packages: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import loads\nloads.load_dotenv()" + SHOWS)
    [said], [shown] = both(template, packages, tmp_path, "train.py")
    assert "the environment (OMP_NUM_THREADS)" in said
    assert "seen where first is imported" in said
    assert shown.startswith("1 False 3 ")


WAITS = """
import os, sys, importlib.util
os.environ['A'] = '1'
print([name in sys.modules for name in ('first', 'third', 'third.below', 'recovery', 'recovery.training')])
spec = importlib.util.find_spec('third')
print(spec.origin, spec.name, spec.loader.get_filename('third'), 'third' in sys.modules)
del os.environ['A']
import third
print([name in sys.modules for name in ('first', 'second', 'third', 'loads')], third.__spec__.loader.get_filename('third'))
"""


def test_what_is_not_imported_yet_is_not_there_yet(
    template: Template, packages: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(WAITS)
    said, shown = both(template, packages, tmp_path, "train.py")
    assert said == [], "to look for a module is no import"
    assert shown[0] == str([False] * 5)


BY_HAND = """
import importlib.util, sys
def made(name, loader=lambda loader: loader):
    spec = importlib.util.find_spec(name)
    spec.loader = loader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
third, loads = made('third'), made('loads', importlib.util.LazyLoader)
import third as again, first
print(again is third, third.seen, callable(loads.load_dotenv), loads.__name__, third.__spec__.loader.get_filename('third'))
"""


def test_what_is_imported_by_hand_or_when_it_is_used_is_the_loaded_module(
    template: Template, packages: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(BY_HAND)
    said, [shown] = both(template, packages, tmp_path, "train.py")
    assert said == []
    assert shown.startswith("True None True loads ")


SAME = (
    "import first, os, json\nos.environ['A'] = '1'\nimport first, colorsys",
    "import third, os\nos.environ['A'] = '1'\nimport first, second, third.below",
    "import sys\nsys.path.append('elsewhere')\nsys.path.insert(0, 'empty')",
    "import os, first, second, third, loads, recovery\nos.environ['A'] = '1'\nimport recovery.training",
    "import os\nos.environ['A'] = '1'\ndel os.environ['A']",
    "import probes, spare",
    "import third.below as below\nimport importlib\nprint(importlib.import_module('first').__spec__.name, type(below))",
)


@pytest.mark.parametrize("text", SAME)
def test_what_imports_do_not_see_gives_up_nothing(
    template: Template, packages: Path, tmp_path: Path, text: str
) -> None:
    (tmp_path / "train.py").write_text(text + SHOWS)
    assert both(template, packages, tmp_path, "train.py")[0] == []


FORMS = (
    "from third import below", "import third.below", "import importlib; importlib.import_module('third.below')",
    "__import__('third')", "import pickle; pickle.loads(b'cthird\\nseen\\n.')", "exec('import third')",
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_import_is_noticed(
    template: Template, packages: Path, tmp_path: Path, form: str
) -> None:
    (tmp_path / "train.py").write_text(f"import os\nos.environ['OMP_NUM_THREADS'] = '1'\n{form}\n" + SHOWS)
    assert len(both(template, packages, tmp_path, "train.py")[0]) == 1


def test_a_module_of_its_name_beside_the_script(template: Template, packages: Path, tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("mine = True")
    (tmp_path / "local_settings.py").write_text("")
    (tmp_path / "train.py").write_text("import sys\nprint('local_settings' in sys.modules)\n" + SHOWS)
    [said], _ = both(template, packages, tmp_path, "train.py")
    assert f"{tmp_path / 'local_settings.py'} has the name of a module" in said


@pytest.mark.parametrize("name", ["optional.py", "loads.py", "optional/"])
def test_a_module_of_a_name_that_an_import_only_looks_for(
    template: Template, packages: Path, tmp_path: Path, name: str
) -> None:
    """As packages do that use others where they are installed (`find_spec`)."""
    if name.endswith("/"):
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("")
    (tmp_path / "train.py").write_text("import probes\nprint(probes.found)\n")
    [said], [shown] = both(template, packages, tmp_path, "train.py")
    assert f"{tmp_path / name} has the name of a module" in said
    assert str(tmp_path / name) in shown


def test_a_directory_that_is_no_package_and_has_the_name_of_one_that_is_installed(
    template: Template, packages: Path, tmp_path: Path
) -> None:
    for name in ("loads", "recovery", "json"):
        (tmp_path / name).mkdir()
    (tmp_path / "train.py").write_text("import probes\nprint(probes.found)\n" + SHOWS)
    assert both(template, packages, tmp_path, "train.py")[0] == []


@pytest.mark.parametrize("change", ["", "import sys\nsys.argv.append('4')\n"])
def test_an_import_that_looks_at_the_command_line(
    template: Template, packages: Path, tmp_path: Path, change: str
) -> None:
    (tmp_path / "train.py").write_text(f"{change}import words\nprint(words.seen)\n")
    said, _ = both(template, packages, tmp_path, "train.py", "--epochs", "3")
    assert len(said) == bool(change)
    assert all("sys.argv (" in line for line in said)


def test_it_keeps_its_id_its_parent_and_its_log(template: Template, packages: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys\nprint('begun', os.getpid(), os.getppid(), flush=True)\nos.environ['A'] = '1'\nimport first\n"
        "print(sys.flags.no_user_site, len(os.listdir('/proc/self/fd')), os.getpid() == os.getsid(0))"
    )
    _, output = forked(template, tmp_path, "train.py", environment=environment_of(packages))
    begun, said, again, last = output.splitlines()
    assert begun == again
    assert begun.split()[2] == str(os.getpid())
    assert said.startswith(GIVEN_UP)
    assert last == "0 4 True"


def test_when_threads_run_it_is_too_late_and_one_line_says_so(
    template: Template, packages: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "os.environ['A'] = '1'\nprint('once', flush=True)\nimport first, second\n"
    )
    status, output = forked(template, tmp_path, "train.py", environment=environment_of(packages))
    once, said = output.splitlines()
    assert (status, once) == (0, "once")
    assert said.startswith("event=import_differs reason=")


def test_what_it_forks_itself_goes_on(template: Template, packages: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nif os.fork() == 0:\n    os.environ['A'] = '1'\n    import first\n    os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    assert both(template, packages, tmp_path, "train.py") == ([], ["7"])


UNREADABLE = ("first", "local_settings", "recovery", "private")


def test_what_cannot_be_looked_at_ends_no_start(tmp_path: Path) -> None:
    """Directories of another user beside the script, named like packages; asked as a user who is not root."""
    needs_root()
    for name in UNREADABLE:
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "train.py").write_text("import first\nprint('runs')\n")
    for directory in (tmp_path, *list(tmp_path.parents)[:3]):
        directory.chmod(0o755)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setuid(65534)
            command = parse_python_command([sys.executable, "train.py"])
            assert command is not None
            prepare = prepare_for(command, ["train.py"], tmp_path)
            assert {"first"} <= {*prepare.modules}
            assert parse_script(["train.py", "x" * 300 + ".py", "a\0.py"], tmp_path).packages == {"first"}
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_dead_mount_beside_the_script_is_no_module(tmp_path: Path) -> None:
    """It ended every start with 65."""
    (tmp_path / "first").mkdir()
    (tmp_path / "train.py").write_text("import first\n")
    with dead_mount(tmp_path / "first"):
        with pytest.raises(OSError, match="not connected"):
            (tmp_path / "first").stat()
        reading = parse_script(["train.py"], tmp_path)
        command = parse_python_command([sys.executable, "train.py"])
        assert command is not None
        prepare = prepare_for(command, ["train.py"], tmp_path)
    assert reading.packages == {"first"}
    assert {"first"} <= {*prepare.modules}
