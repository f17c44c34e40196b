"""What is asked of a server: a process, as `subprocess.Popen` would start it. Both sides read it here."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

REQUEST_MAX = 150_000
"""Bytes of a request. A socket's buffer takes them in one message."""
DESCRIPTORS_MAX = 8
TRACED = "COV"

_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "TZ")
_READ_BY = {
    "torch": ("OMP_", "MKL_", "TORCH_", "PYTORCH_", "CUDA_"),
    "mindspore": ("OMP_", "GLOG_", "VLOG_", "OPENCV_", "MS_SIMULATION_LEVEL", "MS_SUBMODULE_LOG_v"),
}
"""Variables of these names work only in a process that begins with them."""
_TYING = ("-I", "-S", "pre_exec.py")
"""How the engine begins a child that ends with its parent: by a program that becomes the child's."""


class Request(NamedTuple):
    """A process, and the descriptors that it is given."""

    text: bytes
    descriptors: tuple[int, ...]


def suits(mine: Mapping[str, str], other: Mapping[str, str], imports: Iterable[str]) -> bool:
    """Would a process that begins with the other environment read the same at its begin, and have the same traced?"""
    names = (*_READ_AT_START, *(name for module in imports for name in _READ_BY.get(module, ())))
    first, second = (
        {name: value for name, value in variables.items() if name.startswith(names) and name != "PYTHONPATH"}
        for variables in (mine, other)
    )
    return first == second and not any(name.startswith(TRACED) for name in other)


def of_popen(
    arguments: Sequence[Any], *, has_warm_children: bool = False
) -> tuple[Request, dict[str, str]] | None:
    """What `Popen._execute_child` was called with, and the environment in it. None: it can be no fork.

    Args:
        arguments: of it. They have stood in this order since Python 3.9.
        has_warm_children: its own children are to be forked too.
    """
    command, executable, preexec_fn, _, pass_fds, cwd, env, _, _, shell, *rest = arguments
    pipes, (_, gid, gids, uid, umask, new_session) = rest[:6], rest[6:12]
    as_we_are = (executable, preexec_fn, gid, gids, uid, umask) == (None, None, None, None, None, -1)
    if not as_we_are or shell or isinstance(command, str):
        return None
    tying, words = _words(list(map(str, command)), cwd)
    if not words:
        return None
    environment = dict(os.environ if env is None else env)
    streams = [
        stream if given == -1 else given for stream, given in enumerate((pipes[0], pipes[3], pipes[5]))
    ]
    request = {
        "tying": tying,
        "words": words,
        "cwd": str(Path(cwd or ".").absolute()),
        "env": environment,
        "new_session": bool(new_session),
        "numbers": [0, 1, 2, *pass_fds],
        "has_warm_children": has_warm_children,
    }
    text = json.dumps(request).encode()
    if len(text) > REQUEST_MAX or len(pass_fds) + len(streams) > DESCRIPTORS_MAX:
        return None
    return Request(text, (*streams, *pass_fds)), environment


def ask(channel: socket.socket, request: Request) -> int:
    """Ask a server for the process, which becomes a child of whoever takes in the server's orphans; gives its pid."""
    socket.send_fds(channel, [request.text], request.descriptors)
    pid = int(channel.recv(REQUEST_MAX))
    # Its parent has ended then.
    channel.recv(REQUEST_MAX)
    # Otherwise nobody would ever learn its exit code.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return pid


def forked_by(popen: Any, pid: int, pipes: Sequence[int]) -> None:
    """Note it as `Popen._execute_child` does."""
    popen.pid, popen._child_created = pid, True
    popen._close_pipe_fds(*pipes)


def pipes_of(arguments: Sequence[Any]) -> Sequence[int]:
    """Those of `Popen._execute_child`'s arguments."""
    return arguments[10:16]


def _words(command: list[str], cwd: str | Path | None) -> tuple[list[str], list[str]]:
    """The words behind `python`, after those of the program that ties it to its parent; none where it is something else."""
    program, *words = command
    if program == sys.executable and (*words[:2], Path(words[2] if len(words) > 2 else "").name) == _TYING:
        # Its own three, then the parent and the processors.
        return words[2:5], _words(words[5:], cwd)[1]
    if program != sys.executable:
        words = [program, *words]
        if not _is_script_of_ours(Path(program)):
            return [], []
    if not words or (words[0].startswith("-") and words[0] not in ("-m", "-c")):
        return [], []
    is_script = words[0] not in ("-m", "-c")
    return [], words if not is_script or Path(cwd or ".", words[0]).is_file() else []


def _is_script_of_ours(path: Path) -> bool:
    """Does the kernel start it with our interpreter?"""
    first_line = f"#!{sys.executable}\n".encode()
    return path.is_absolute() and path.is_file() and path.read_bytes()[: len(first_line)] == first_line
