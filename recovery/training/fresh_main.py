"""What a program finds at its first line, noted before its first run and put back before each further one.

Kept is what is installed: the standard library, packages, whatever was loaded before the program began, and a package of the user's that
has an extension of C, which no process loads twice. Forgotten are the user's own modules.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.machinery
import logging
import multiprocessing
import os
import signal
import site
import sys
import sysconfig
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from recovery import process_conditions
from recovery.clock import monotonic_ms

_THREADS_END_MS = 500
"""How long threads of the program may take to end once nothing holds what they work for."""
_NOT_KEPT = ("MS_JOB_TOKEN", "MS_RESUME_TOKEN", "MS_RESUME_HANGS")
"""Variables that are taken out of the environment when the process joins."""


class FreshMain:
    """Of one program."""

    def __init__(self) -> None:
        """Note how things are now."""
        self._modules = frozenset(sys.modules)
        self._conditions = process_conditions.note()
        self._environment = dict(os.environ)  # noqa: TID251 - put back, not read
        self._path, self._arguments = list(sys.path), list(sys.argv)
        self._hooks = {name: getattr(sys, name) for name in _HOOKS}
        self._filters = list(warnings.filters)
        self._threads = frozenset(threading.enumerate())
        self._signals = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self._loggers = {name: _state_of(logger) for name, logger in _loggers().items()}
        self._entry_states = _entry_states()
        self._at_exit: list[Callable[..., object]] = []
        self._register = atexit.register
        atexit.register = self._note_at_exit

    def _note_at_exit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """In the place of `atexit.register`: what the program registers runs once, however often the program does."""
        if _is_users(sys._getframe(1)):  # noqa: SLF001 - no other way to who asks
            self._at_exit.append(function)
        return self._register(function, *arguments, **named)

    def restore(self) -> str:
        """Put everything back. Gives why the program cannot be run in this process again; empty: it can."""
        if len(_entry_states()) > len(self._entry_states):
            return "an integration was loaded by the script, so what its generators were at the first line is not known"
        for function in self._at_exit:
            atexit.unregister(function)
        self._at_exit.clear()
        self._forget_modules()
        gc.collect()
        if thread := self._users_thread():
            return f"the thread {thread!r} of the script goes on"
        for child in multiprocessing.active_children():
            child.kill()
        multiprocessing.set_start_method(None, force=True)
        self._restore_interpreter()
        self._restore_loggers()
        for restore, state in self._entry_states:
            restore(state)
        left = process_conditions.restore(self._conditions)
        return next((each.text for each in left), "")

    def _restore_loggers(self) -> None:
        """Those that were there, and those that no loaded library has made."""
        for name, logger in _loggers().items():
            if name in self._loggers:
                noted = self._loggers[name]
                # Copies: what is added to them would be found at the next run.
                logger.__dict__.update(noted, handlers=[*noted["handlers"]], filters=[*noted["filters"]])
            elif _is_of(name, "__main__") or name.partition(".")[0] not in sys.modules:
                logger.__dict__.update(
                    handlers=[], filters=[], level=logging.NOTSET, propagate=True, disabled=False
                )
        logging.Logger.manager._clear_cache()  # type: ignore[attr-defined]  # noqa: SLF001 - as whoever changes a level has to

    def _restore_interpreter(self) -> None:
        sys.path[:], sys.argv[:] = self._path, self._arguments
        for name, value in self._hooks.items():
            setattr(sys, name, value)
        warnings.filters[:] = self._filters  # type: ignore[index]  # a list, whatever its stub says
        warnings._filters_mutated()  # type: ignore[attr-defined]  # noqa: SLF001 - as whoever changes the list has to
        for number, handler in self._signals.items():
            # What is not Python's own cannot be put back; SIGTERM is the run loop's.
            if handler is not None and number != signal.SIGTERM and signal.getsignal(number) is not handler:
                with contextlib.suppress(OSError):
                    signal.signal(number, handler)
        for name in set(os.environ) - set(self._environment):  # noqa: TID251 - put back, not read
            del os.environ[name]  # noqa: TID251 - as above
        kept = {name: value for name, value in self._environment.items() if name not in _NOT_KEPT}
        os.environ.update(kept)  # noqa: TID251 - as above
        time.tzset()

    def _forget_modules(self) -> None:
        """Drop the user's own modules, and what they hold: something that stays loaded may know them."""
        loaded: dict[str, Any] = {**sys.modules}
        with_extension = {name.partition(".")[0] for name, module in loaded.items() if _is_extension(module)}
        for name, module in loaded.items():
            if name not in ("__main__", "__mp_main__") and (
                name in self._modules
                or name.partition(".")[0] in with_extension
                or not _is_users_file(_place_of(module))
            ):
                continue
            del sys.modules[name]
            _empty(vars(module))
        importlib.invalidate_caches()

    def _users_thread(self) -> str:
        """A thread that the program has begun and that runs its code."""
        deadline = monotonic_ms() + _THREADS_END_MS
        for thread in list(self._threads_of_program()):
            # One that waits for what the program has let go of ends now.
            thread.join(max(0, deadline - monotonic_ms()) / 1000)
        return next((thread.name for thread in self._threads_of_program()), "")

    def _threads_of_program(self) -> Iterator[threading.Thread]:
        frames = sys._current_frames()  # noqa: SLF001 - no other way to them
        for thread in threading.enumerate():
            if thread in self._threads or thread is threading.current_thread():
                continue
            if _begun_by_users(frames.get(thread.ident or 0)):
                yield thread


_HOOKS = ("excepthook", "displayhook", "stdin", "stdout", "stderr", "dont_write_bytecode")
_NAMES = ("stdlib", "platstdlib", "purelib", "platlib")
_INSTALLED = {
    *(sysconfig.get_path(name) for name in _NAMES),
    *site.getsitepackages(),
    site.getusersitepackages(),
}
_PLACES = tuple(os.path.realpath(place) + os.sep for place in (*_INSTALLED, str(Path(__file__).parents[1])))
"""Where what is installed lies, and this package."""
_seen: dict[str, bool] = {}


def _place_of(module: Any) -> str | None:
    """Its file; of a directory without an `__init__.py`, which holds modules that were dropped, that directory."""
    if getattr(module, "__file__", None) is None and hasattr(module, "__path__"):
        return next((str(place) for place in module.__path__), None)
    return getattr(module, "__file__", None)


def _is_users_file(file: str | None) -> bool:
    if not file or file.startswith("<frozen"):
        return False
    if file not in _seen:
        _seen[file] = not os.path.realpath(file).startswith(_PLACES)
    return _seen[file]


def _is_users(frame: FrameType) -> bool:
    """By its file. What was made of a text (the methods of a data class) has none, and is of the module whose names it sees."""
    file = frame.f_code.co_filename
    return _is_users_file(frame.f_globals.get("__file__", file) if file.startswith("<") else file)


def _begun_by_users(frame: FrameType | None) -> bool:
    """Is the outermost code of a thread that is not the standard library's the user's? The collector runs its finalizers in any thread, also ours."""
    is_users = False
    while frame is not None:
        if _is_users(frame) or frame.f_globals.get("__name__", "").partition(".")[0] == "recovery":
            is_users = _is_users(frame)
        frame = frame.f_back
    return is_users


def _is_extension(module: Any) -> bool:
    """Is it a module of C that is not installed?"""
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    return isinstance(loader, importlib.machinery.ExtensionFileLoader) and _is_users_file(
        getattr(module, "__file__", None)
    )


def _empty(names: dict[str, Any]) -> None:
    """Let go of a module's data. Its functions stay: what still knows one may call it."""
    code = types.FunctionType | types.ModuleType | type
    for name, value in [*names.items()]:
        if not isinstance(value, code) and not name.startswith("__"):
            del names[name]


def _loggers() -> dict[str, logging.Logger]:
    """By name; the root's is empty. The engine's own stay as they are."""
    found = {
        name: one
        for name, one in logging.Logger.manager.loggerDict.items()
        if isinstance(one, logging.Logger)
    }
    return {
        "": logging.getLogger(),
        **{name: one for name, one in found.items() if not _is_of(name, "recovery")},
    }


def _is_of(name: str, *packages: str) -> bool:
    return name.partition(".")[0] in packages


def _state_of(logger: logging.Logger) -> dict[str, Any]:
    return {**vars(logger), "handlers": [*logger.handlers], "filters": [*logger.filters]}


def _entry_states() -> list[tuple[Callable[[Any], None], Any]]:
    """What an integration puts back at each entry, as it is now."""
    hooks: Any = sys.modules.get("recovery.training.framework_hooks")
    return [(restore, capture()) for capture, restore in hooks.entry_states] if hooks is not None else []
