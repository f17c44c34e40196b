"""What others see of a forked process in /proc: its command line and environment are those that it was begun with.

Else `ps` and `pgrep -f train.py` would find no worker, and nvidia-smi would name each by its template: of four lines of a job four.
The kernel reads both from the process's own memory, and is given their new place (prctl(2), PR_SET_MM_MAP; no privilege is needed).
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_CODE_AND_DATA, _STACK = (26, 27, 45, 46, 47), 28
"""Begin and end of code and data, begin of the heap; begin of the stack: by the numbers of proc_pid_stat(5)."""
_MAP = struct.Struct("12Q2I")
"""`struct prctl_mm_map` of linux/prctl.h."""
_NO_OTHER_PROGRAM = 0xFFFFFFFF
_kept: list[object] = []
"""Memory that the kernel reads as long as this process runs."""


def set_proc_cmdline(command: Sequence[str], environment: Mapping[bytes, bytes]) -> bool:
    """Let /proc show these of this process. Gives whether the kernel did; older ones and some containers do not."""
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    variables = b"".join(name + b"=" + value + b"\0" for name, value in environment.items())
    block = ctypes.create_string_buffer(words + variables, len(words) + len(variables))
    begin = ctypes.addressof(block)
    middle, end = begin + len(words), begin + len(words) + len(variables)
    # Behind the name, which may hold anything, stands the third field.
    stat = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    code_and_data, stack = [int(stat[number - 3]) for number in _CODE_AND_DATA], int(stat[_STACK - 3])
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    mapped = _MAP.pack(
        *code_and_data, libc.sbrk(0), stack, begin, middle, middle, end, 0, 0, _NO_OTHER_PROGRAM
    )
    size = ctypes.c_ulong(len(mapped))
    if libc.prctl(_PR_SET_MM, ctypes.c_ulong(_PR_SET_MM_MAP), mapped, size, ctypes.c_ulong(0)):
        return False
    _kept.append(block)
    return True
