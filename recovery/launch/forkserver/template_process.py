"""The template process, a program of its own: `python OPTIONS template_process.py DESCRIPTOR`.

It imports what its launcher says, starts no thread, touches no device, and then forks a process for each request. A forked process is
finished by forked_child.py, and runs its program from here: the interpreter's own end (exit codes, atexit, threads) is that of any
program. Where there is time a process is forked ahead, and waits for the next request (preforked_process.py).

A worker proxy is forked once more, and the new process goes on as its own template (proxy_template.py).
"""

from __future__ import annotations

import sys

# The directory of this file is first in the path of a program; its modules' names would hide others.
if not getattr(sys.flags, "safe_path", sys.flags.isolated):
    sys.path.pop(0)

import contextlib
import ctypes
import gc
import os
import socket
from functools import partial
from pathlib import Path
from typing import NoReturn

_ROOT = str(Path(__file__).parents[3])
_ADDED = [] if any(Path(place) == Path(_ROOT) for place in sys.path) else [_ROOT]
sys.path += _ADDED

from recovery import clock, log  # noqa: E402 - behind the path that it comes from
from recovery.launch.forkserver import (  # noqa: E402 - behind the path that it comes from
    first_imports,
    fork_messages,
    forked_child,
    page_sharing,
    proxy_template,
    template_checks,
)
from recovery.launch.forkserver.fork_messages import Fork, Forked, NotForked, Prepare, Prepared, Stale, Unsafe  # noqa: E402 - behind the path that it comes from
from recovery.launch.forkserver.preforked_process import NewProcess, PreforkedProcess, fork  # noqa: E402 - behind the path that it comes from
from recovery.readable import is_readable  # noqa: E402 - behind the path that it comes from

for _place in _ADDED:
    sys.path.remove(_place)


_PAUSE_S = 0.3
"""Without a request, after which a process is forked ahead: not while others begin, or a job comes back."""
_COPIES_AFTER_S = (0.05, 10.0)
"""Without a request, after which a process that was forked ahead copies what an older one has written; the second time for one that had
only just begun at the first."""


def _serve(link: socket.socket, files: template_checks.Files, begun: list[int]) -> NoReturn:
    """Begin a process for each request.

    Args:
        link: to the launcher.
        files: that make the template stale when they change.
        begun: the processes that were begun, oldest first; added to.

    Raises:
        SystemExit: the launcher is gone.
        NewProcess: in each forked process.
    """
    ahead: PreforkedProcess | None = None
    while True:
        while ahead is None and not is_readable(link, _PAUSE_S):
            # Where the system refuses it, the launcher that asks for a process hears of that.
            with contextlib.suppress(OSError):
                ahead = fork(link)
        try:
            request, descriptors = fork_messages.receive_request(link)
        except (EOFError, OSError):
            raise SystemExit(0) from None
        assert isinstance(request, Fork), "what to import is said once"
        if ahead is not None and ahead.has_ended():
            ahead = None
        try:
            process = ahead or fork(link)
            answer: Forked | NotForked | Stale = process.begin(
                request, descriptors, partial(template_checks.changed_of, files)
            )
        except OSError as error:
            answer = NotForked(errno=error.errno or 0, reason=str(error.strerror))
        ahead = None
        if isinstance(answer, Forked):
            begun.append(answer.pid)
        fork_messages.send(link, answer)
        for descriptor in descriptors:
            os.close(descriptor)


def _prepare(link: socket.socket) -> tuple[Prepare, template_checks.Files, first_imports.Imported]:
    request, _ = fork_messages.receive_request(link)
    assert isinstance(request, Prepare), "what to import is said first"
    begun_ms = clock.monotonic_ms()
    # Modules stay: looking for garbage among them again and again is a third of the time.
    gc.disable()
    imported = template_checks.import_all(request, link.fileno())
    if isinstance(imported, str):
        fork_messages.send(link, Unsafe(reason=imported))
        raise SystemExit(0)
    # What is still held back each of its processes would print as its own.
    log.flush_streams()
    ctypes.CDLL(None).fflush(None)
    reader = sys.modules.get("recovery.store.reader")
    if reader is not None:
        # Of a process that takes over a lost rank, while all others wait.
        reader.compile_statements()
    files = template_checks.loaded_files()
    # What is frozen is never written by a collection, so its memory stays shared.
    gc.collect()
    gc.freeze()
    gc.enable()
    page_sharing.join_pages()
    took_ms = clock.monotonic_ms() - begun_ms
    fork_messages.send(link, Prepared(module_count=len(sys.modules), took_ms=took_ms))
    return request, files, imported


def _become(
    template: socket.socket, imported: first_imports.Imported, launcher: int, begun: list[int]
) -> tuple[Fork, forked_child.Program]:
    """In a forked process: wait for the request, and become what it says. Meanwhile what will be written is copied."""

    def is_wanted(within_s: float = 0) -> bool:
        return is_readable(template, within_s)

    for pause_s in _COPIES_AFTER_S:
        if not is_wanted(pause_s):
            next((pid for pid in begun if page_sharing.copy_as(pid, is_wanted)), None)
    try:
        request, (log, go) = fork_messages.receive_request(template)
    except (EOFError, OSError):
        os._exit(0)
    assert isinstance(request, Fork), "a template forks for these"
    held = forked_child.Descriptors(log, go, template.detach())
    return request, forked_child.turn_into_worker(request, imported, launcher, held)


def _main(words: list[str]) -> forked_child.Program:
    """Returns in forked processes only: what each is to run."""
    launcher = os.getppid()
    link = socket.socket(fileno=int(words[0]))
    os.set_inheritable(link.fileno(), False)
    prepare, files, imported = _prepare(link)
    shown = tuple(sys.orig_argv), dict(os.environb)  # noqa: TID251 - what /proc shows of this process
    begins_proxies = prepare.programs
    begun: list[int] = []
    while True:
        try:
            _serve(link, files, begun)
        except NewProcess as new:
            template = new.template
        request, program = _become(template, imported, launcher, begun)
        to_proxy = proxy_template.fork_program_template(request, *shown) if begins_proxies else None
        if to_proxy is None:
            return program
        link, launcher, begins_proxies = to_proxy, os.getppid(), False


if __name__ == "__main__":
    _main(sys.argv[1:]).run()
