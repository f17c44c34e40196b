"""The process that writes checkpoints for a training process: it has no framework, no world, and dies with its parent.

Started as a file, with nothing but the standard library: it is there within 30 ms and takes 10 MiB. The training process sends one
message for each save, with the descriptors of a memory that both share and of the file to write; the answer is the file's digest.
Names, renames and manifests stay with the parent.
"""

import ctypes
import hashlib
import mmap
import os
import signal
import socket
import sys

_PR_SET_PDEATHSIG = 1
"""Of linux/prctl.h."""
_CHUNK_BYTES = 1 << 20
"""Large enough that system calls cost nothing, small enough that what was digested is still in the cache when it is written."""
_NICENESS = 5
"""Training comes first where processors are few. Its next save waits only if this one takes longer than all steps between them."""


class SharedMemory:
    """The memory of the saves, mapped once: mapping it for each would cost a page fault for each 64 KiB of every save."""

    def __init__(self) -> None:
        """Nothing is mapped yet."""
        self._inode = 0
        self._view = memoryview(b"")

    def take(self, descriptor: int) -> memoryview:
        """Give the content of the memory behind a descriptor, which may be closed then."""
        inode = os.fstat(descriptor).st_ino
        if inode != self._inode:
            mapped = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
            self._inode, self._view = inode, memoryview(mapped)
        return self._view


def write_out(content: memoryview, target: int) -> str:
    """Write all of `content` to the open file `target`; returns its SHA-256, hex.

    Raises:
        OSError: a write failed; nothing is tried again.
    """
    digest = hashlib.sha256()
    for start in range(0, len(content), _CHUNK_BYTES):
        chunk = content[start : start + _CHUNK_BYTES]
        digest.update(chunk)
        while chunk:
            chunk = chunk[os.write(target, chunk) :]
    return digest.hexdigest()


def serve(channel: socket.socket) -> None:
    """Write one file for each message (its size in bytes, as text) until the parent is gone."""
    memory = SharedMemory()
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, 64, 2)
        if not message:
            return
        shared, target = descriptors
        try:
            answer = "written " + write_out(memory.take(shared)[: int(message)], target)
        except OSError as error:
            answer = f"failed {error.errno}"
        finally:
            os.close(shared)
            os.close(target)
        channel.send(answer.encode())


def main() -> None:
    """Serve the parent whose end of the channel is given by number, with its process id."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        # It ended before the call above.
        return
    # A signal to the whole group is the parent's to answer; it may still want a last save.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    os.nice(_NICENESS)
    try:
        serve(channel)
    except ConnectionError:
        # The parent has ended, or has become another program, in the middle of a message. What was written has no name.
        return


if __name__ == "__main__":
    main()
