"""The Python stacks of a process that answers nobody any more: who ends it asks for them before.

faulthandler writes them from its handler of a signal, in C: also while a thread keeps the interpreter's lock, which no other thread of the process gets
around. The signal is one that nothing else uses. A process that has no handler for it would end by it; it is ended anyway.
"""

from __future__ import annotations

import faulthandler
import signal

SIGNAL = signal.SIGRTMAX - 7
"""A real-time signal: its default is to end the process."""
_STANDARD_ERROR = 2


def write_when_asked() -> None:
    """From now on this process writes the stacks of all its threads to its standard error, as file 2, when it is sent the signal. Any thread."""
    faulthandler.register(SIGNAL, file=_STANDARD_ERROR, all_threads=True)
