"""From a fork of the template to what a fresh interpreter would be, and the run of its program.

Whatever a process must not share with the template, or would find otherwise in a process of its own, is set here.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.machinery
import os
import random  # noqa: TID251 - whose states others have made
import runpy
import sys
import threading
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Union

import msgspec

from recovery import process_conditions
from recovery.frameworks import FRAMEWORKS, used
from recovery.launch.forkserver import proc_cmdline
from recovery.launch.forkserver.first_imports import FirstImports, Imported
from recovery.launch.forkserver.fork_messages import Fork, Forked, NotForked
from recovery.launch.python_command import Runs, parse_python_command, searches_own_directory
from recovery.training import own_main
from recovery.worker import exec_in_place

_STDERR = 2
_OURS = (__file__, own_main.__file__)
"""Files whose frames are not the script's."""


class Descriptors(NamedTuple):
    """What a forked process is given; all but the log are closed before its program begins."""

    log: int
    go: int
    """Gives a byte when the launcher knows of this process; its end: it never will."""
    template: int
    """Gives a byte once the process between the template and this one has ended, and takes the report."""


_reports: msgspec.msgpack.Decoder[Forked | NotForked] = msgspec.msgpack.Decoder(Union[Forked, NotForked])


def report_error(template: int, error: OSError) -> None:
    """Say that the process cannot begin."""
    os.write(template, msgspec.msgpack.encode(NotForked(errno=error.errno or 0, reason=str(error.strerror))))


def read_report(said: bytes) -> Forked | NotForked:
    """What the process has said, for the launcher."""
    return _reports.decode(said) if said else NotForked(errno=0, reason="it ended before it began")


def turn_into_worker(request: Fork, imported: Imported, launcher: int, held: Descriptors) -> Program:
    """Turn this forked process into what the request says. Gives what is to run.

    Args:
        request: what the launcher asked for.
        imported: what the imports did besides.
        launcher: process id of the parent that this process must have.
        held: its descriptors.
    """
    _, go, template = held
    try:
        os.setsid()
        _open_only(*held)
    except OSError as error:
        report_error(template, error)
        os._exit(1)
    # Its parent is still the process between, and that one's end would be this one's. `tie_to` sets it.
    for left in process_conditions.restore(request.conditions, leave=(process_conditions.PARENTS_DEATH,)):
        if left.name == "directory" and left.error is not None:
            report_error(template, left.error)
            os._exit(1)
        os.write(_STDERR, f"event=condition_not_restored {left.text}\n".encode(errors="replace"))
    proc_cmdline.set_proc_cmdline(request.command, request.environment)
    _replace_environment(request.environment)
    _seed_again(imported.generators)
    _forget_the_template()
    # Until then the kernel would end it with another parent than its launcher.
    if not os.read(template, 1):
        os._exit(1)
    process_conditions.tie_to(launcher)
    exec_in_place.note_start()
    os.write(template, msgspec.msgpack.encode(Forked(pid=os.getpid())))
    os.close(template)
    # A process that the launcher does not know of would run beside the one that it begins instead.
    if not os.read(go, 1):
        os._exit(1)
    os.close(go)
    return Program(request.command, FirstImports(request, launcher, imported))


def _open_only(log: int, *kept: int) -> None:
    """Stdin, stdout and stderr as a spawned process has them; of all others only those that are kept."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, to in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, to)
    # Not all numbers up to the limit: that is a billion in some containers.
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are numbers here
        if int(name) > _STDERR and int(name) not in kept:
            # The descriptor of the listing itself is closed already.
            with contextlib.suppress(OSError):
                os.close(int(name))


def _replace_environment(environment: Mapping[bytes, bytes]) -> None:
    """All of it, for C as well."""
    os.environ.clear()  # noqa: TID251 - handed on, not read
    for name, value in environment.items():
        os.environb[name] = value  # noqa: TID251 - as above
    time.tzset()


def _seed_again(generators: Sequence[random.Random]) -> None:
    """Random states as a fresh interpreter has them: from the system. Only of what is imported."""
    # The standard library's own is seeded by itself after a fork.
    for generator in generators:
        generator.seed()
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    for framework in used(sys.modules):
        if framework.seeded_generator:
            getattr(sys.modules[framework.name], framework.seeded_generator).seed()


def _forget_the_template() -> None:
    """What modules have kept of the process that imported them."""
    importlib.invalidate_caches()
    for name, read in (row for framework in FRAMEWORKS for row in framework.read_again.items()):
        if name in sys.modules:
            read(sys.modules[name], os.environ)  # noqa: TID251 - as the module itself did when it was imported
    main_thread: Any = threading.main_thread()
    # Python renews its other number only (measured with 3.11).
    main_thread._set_native_id()  # noqa: SLF001 - see above
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = os.getcwd()  # noqa: PTH109 - a text there
        process.current_process().authkey = os.urandom(32)


class Program:
    """What the process runs."""

    def __init__(self, words: tuple[str, ...], first_imports: FirstImports) -> None:
        """Note it.

        Args:
            words: what to run.
            first_imports: compares what it finds with what the template has found.
        """
        command = parse_python_command(words)
        assert command is not None, "the launcher asks for what can be forked only"
        self._command, self._words, self._first_imports = command, words, first_imports
        self._has_begun = False

    def run(self) -> None:
        """Run it as `__main__`. What it raises is shown and answered as the interpreter does.

        Raises:
            SystemExit: its exit code; 1 after any other exception.
            KeyboardInterrupt: as it came; it was shown already.
        """
        try:
            own_main.own_main.run(self._run)
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001 - the interpreter's own answer to all of them
            raised = error
        else:
            self._forget_file()
            return
        # Not above: what a hook raises would seem to have come of handling the exception.
        ended = _shown(raised)
        self._forget_file()
        raise ended

    def _run(self) -> None:
        command = self._command
        sys.argv[:], sys.orig_argv[:] = command.argv, self._words
        main = _new_main()
        if command.runs is Runs.MODULE:
            if searches_own_directory():
                sys.path.insert(0, os.getcwd())  # noqa: PTH109 - a text there
            module = sys.modules.get(command.target)
            # Python warns of a module that is run although it is imported.
            if module is not None and not hasattr(module, "__path__"):
                del sys.modules[command.target]
            self._begin()
            run_as_main: Any = runpy._run_module_as_main  # type: ignore[attr-defined] # noqa: SLF001 - what `python -m` calls
            run_as_main(command.target)
            return
        # As the interpreter joins them: nothing is normalised.
        path = os.path.join(os.getcwd(), command.target)  # noqa: PTH109, PTH118 - as the interpreter makes it, to the byte
        try:
            with open(command.target, "rb") as file:  # noqa: PTH123 - as typed
                code = compile(file.read(), path, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError):
            if self._has_begun:
                raise
            # The interpreter itself says what is wrong, or knows how to run a directory.
            self._first_imports.start_again()
        if searches_own_directory():
            sys.path.insert(0, os.path.dirname(os.path.realpath(command.target)))  # noqa: PTH120 - as above
        main["__file__"], main["__cached__"] = path, None
        main["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
        self._begin()
        exec(code, main)  # noqa: S102 - it is the user's script

    def _begin(self) -> None:
        """What is imported is compared in the first run: in a further one all of it is loaded, and the engine has begun."""
        if not self._has_begun:
            self._has_begun = True
            self._first_imports.begin()

    def _forget_file(self) -> None:
        """As the interpreter does behind a script, before anything registered with atexit runs."""
        if self._command.runs is Runs.SCRIPT:
            names = vars(sys.modules["__main__"])
            names.pop("__file__", None)
            names.pop("__cached__", None)


def _new_main() -> dict[str, Any]:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    names = vars(module)
    names["__annotations__"] = {}
    names["__builtins__"] = builtins
    names["__loader__"] = importlib.machinery.BuiltinImporter
    return names


def _shown(error: BaseException) -> BaseException:
    """Show an exception as the interpreter does, without the frames that are not the program's. Gives what ends the process."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in _OURS:
        frames = frames.tb_next
    error.__traceback__ = frames
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, frames
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, frames)
    except SystemExit as ended:
        return ended
    except BaseException as failure:  # noqa: BLE001 - as the interpreter does
        failure.__traceback__ = failure.__traceback__ and failure.__traceback__.tb_next
        sys.stderr.write("Error in sys.excepthook:\n")
        traceback.print_exception(failure)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, frames)
    if isinstance(error, KeyboardInterrupt):
        # The interpreter then ends this process by SIGINT; it was shown already.
        sys.excepthook = lambda *_: None
        return error
    return SystemExit(1)
