"""What others see of a forked process in /proc: its command line and environment are those that it was begun with.

The kernel reads both from the process's own memory. It is given their new place (prctl(2), PR_SET_MM_MAP; no privilege is needed).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_MM = 35
_PR_SET_MM_MAP = 14
_NOBODY = 0xFFFFFFFF
"""No other program file."""
_ADDRESSES = (
    "start_code",
    "end_code",
    "start_data",
    "end_data",
    "start_brk",
    "brk",
    "start_stack",
    "arg_start",
    "arg_end",
    "env_start",
    "env_end",
    "auxv",
)
_FIRST_FIELD = 3
_FIELDS = {
    "start_code": 26,
    "end_code": 27,
    "start_stack": 28,
    "start_data": 45,
    "end_data": 46,
    "start_brk": 47,
}
"""Of /proc/self/stat, by the numbers of proc_pid_stat(5)."""

_kept: list[object] = []
"""Memory that the kernel reads as long as this process runs."""


class _Map(ctypes.Structure):
    """`struct prctl_mm_map` of linux/prctl.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in _ADDRESSES),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


def set_proc_cmdline(command: Sequence[str], environment: Mapping[bytes, bytes]) -> bool:
    """Let /proc show these of this process. Gives whether the kernel did; older ones and some containers do not."""
    words = b"".join(word.encode(errors="surrogateescape") + b"\0" for word in command)
    variables = b"".join(name + b"=" + value + b"\0" for name, value in environment.items())
    block = ctypes.create_string_buffer(words + variables, len(words) + len(variables))
    begin = ctypes.addressof(block)
    middle, end = begin + len(words), begin + len(words) + len(variables)
    stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    addresses = {name: int(stat[number - _FIRST_FIELD]) for name, number in _FIELDS.items()}
    addresses |= {"arg_start": begin, "arg_end": middle, "env_start": middle, "env_end": end}
    mapped = _Map(**addresses, brk=libc.sbrk(0), exe_fd=_NOBODY)
    size = ctypes.c_ulong(ctypes.sizeof(mapped))
    if libc.prctl(_PR_SET_MM, ctypes.c_ulong(_PR_SET_MM_MAP), ctypes.byref(mapped), size, ctypes.c_ulong(0)):
        return False
    _kept.append(block)
    return True
