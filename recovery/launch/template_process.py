"""The template process, a program of its own: `python OPTIONS template_process.py DESCRIPTOR`.

It imports what its launcher says, starts no thread, touches no device, and then forks a process for each request. A forked process is
finished by forked_child.py, and runs its program from here: the interpreter's own end (exit codes, atexit, threads) is that of any
program.

A worker proxy is forked once more, and the new process goes on as its own template (program_template.py).

Each process is forked twice: the process between ends at once, so the kernel gives the new process to the launcher, which reaps the
children of its descendants. It outlives this template, and its launcher sees its true status.
"""

from __future__ import annotations

import sys

# The directory of this file is first in the path of a program; its modules' names would hide others.
if not getattr(sys.flags, "safe_path", sys.flags.isolated):
    sys.path.pop(0)

import contextlib
import gc
import os
import socket
from collections.abc import Sequence
from pathlib import Path

_ROOT = str(Path(__file__).parents[2])
_ADDED = [] if any(Path(place) == Path(_ROOT) for place in sys.path) else [_ROOT]
sys.path += _ADDED

from recovery import clock  # noqa: E402
from recovery.launch import fork_messages, forked_child, program_template, template_checks  # noqa: E402
from recovery.launch.fork_messages import Fork, NotForked, Prepare, Prepared, Stale, Unsafe  # noqa: E402

for _place in _ADDED:
    sys.path.remove(_place)


def _serve(link: socket.socket) -> forked_child.Program:
    """Import, then fork for each request. Returns in forked processes only: what each is to run.

    Raises:
        SystemExit: the launcher is gone, or this process must not be forked.
    """
    launcher = os.getppid()
    prepare, files, imported = _prepare(link)
    shown = tuple(sys.orig_argv), dict(os.environb)  # noqa: TID251 - what /proc shows of this process
    begins_proxies = prepare.programs
    while True:
        try:
            request, descriptors = fork_messages.receive_request(link)
        except (EOFError, OSError):
            raise SystemExit(0) from None
        assert isinstance(request, Fork), "what to import is said once"
        changed = files.changed()
        if changed:
            fork_messages.send(link, Stale(reason=changed))
        else:
            # What a program's imports do besides is not for its proxy.
            done = imported.nothing_done() if begins_proxies else imported
            program = _begin(link, launcher, request, done, descriptors)
            if program is not None:
                # Its number is free, and may be another descriptor's soon.
                link.detach()
                to_proxy = program_template.divide(request, *shown) if begins_proxies else None
                if to_proxy is None:
                    return program
                link, launcher, descriptors, begins_proxies = to_proxy, os.getppid(), [], False
        for descriptor in descriptors:
            os.close(descriptor)


def _prepare(link: socket.socket) -> tuple[Prepare, template_checks.Files, forked_child.Imported]:
    request, _ = fork_messages.receive_request(link)
    assert isinstance(request, Prepare), "what to import is said first"
    begun_ms = clock.monotonic_ms()
    before = template_checks.Before()
    # Modules stay: looking for garbage among them again and again is a third of the time.
    gc.disable()
    reason, generators = template_checks.import_all(request)
    reason = reason or before.difference(link.fileno(), request)
    if reason:
        fork_messages.send(link, Unsafe(reason=reason))
        raise SystemExit(0)
    imported = before.imported(generators)
    files = template_checks.Files(request)
    # What is frozen is never written by a collection, so its memory stays shared.
    gc.collect()
    gc.freeze()
    gc.enable()
    took_ms = clock.monotonic_ms() - begun_ms
    fork_messages.send(link, Prepared(module_count=len(sys.modules), took_ms=took_ms))
    return request, files, imported


def _begin(
    link: socket.socket,
    launcher: int,
    request: Fork,
    imported: forked_child.Imported,
    descriptors: Sequence[int],
) -> forked_child.Program | None:
    """Fork a process and say how that went; None in the template itself."""
    # The process waits at the first pipe until the one between is gone, and reports by the second.
    begin, may_begin = os.pipe()
    report, reported = os.pipe()
    try:
        between = os.fork()
    except OSError as error:
        for descriptor in (begin, may_begin, report, reported):
            os.close(descriptor)
        fork_messages.send(link, NotForked(errno=error.errno or 0, reason=str(error.strerror)))
        return None
    if between == 0:
        os.close(may_begin)
        os.close(report)
        try:
            pid = os.fork()
        except OSError as error:
            forked_child.report_error(reported, error)
            os._exit(0)
        if pid:
            os._exit(0)
        log, go = descriptors
        held = forked_child.Descriptors(log, go, begin, reported)
        return forked_child.become(request, imported, launcher, held)
    os.close(begin)
    os.close(reported)
    os.waitpid(between, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(may_begin, b"1")
    os.close(may_begin)
    said = b""
    while part := os.read(report, 4096):
        said += part
    os.close(report)
    fork_messages.send(link, forked_child.read_report(said))
    return None


def _main(words: list[str]) -> forked_child.Program:
    link = socket.socket(fileno=int(words[0]))
    os.set_inheritable(link.fileno(), False)
    return _serve(link)


if __name__ == "__main__":
    _main(sys.argv[1:]).run()
