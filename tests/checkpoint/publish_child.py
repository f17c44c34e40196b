"""A process that publishes while the system calls of it are counted, and stops it at any of them: a script, no test.

usage: publish_child.py {trace|kill|fail} {fresh|again|fresh set|again set|fresh folder|again folder|fresh fetched} ROOT

trace prints the calls in order. kill dies by SIGKILL before the call number N, for every N; fail makes call number N fail with
EIO instead. Each N has a directory of its own, ROOT/N, in which an older checkpoint is there before. A set is a checkpoint of
three files. A folder is one that a framework has written: what is stopped makes a checkpoint of it. A fetched one is a set of another
node, of which what is stopped makes a copy.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recovery.checkpoint import verify
from recovery.checkpoint.adopt import adopt_folder
from recovery.checkpoint.contribution import FileRole, Layout, Manifest, ManifestFile
from recovery.checkpoint.fetched import Receipt, sealed_bytes
from recovery.checkpoint.publish import Content, publish
from recovery.checkpoint.verify import Wanted
from recovery.errors import CheckpointWriteError

CALLS = ("open", "write", "fsync", "rename", "unlink", "close")
STEPS_MAX = 100
SAVED_ANYWAY = 10
"""Exit code: the planted failure did not keep the checkpoint from being saved."""


class Stopper:
    """Counts the calls and stops before one of them."""

    def __init__(self, mode: str, stop_at: int) -> None:
        self.mode, self.stop_at, self.count = mode, stop_at, 0
        self.trace: list[str] = []
        self.opened: dict[int, str] = {}

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count == self.stop_at:
                if self.mode == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(errno.EIO, "planted")
            result = real(*args, **kwargs)
            subject = self.opened.get(args[0], "?") if isinstance(args[0], int) else _short(args[0])
            if name == "open":
                self.opened[result] = subject
            self.trace.append(f"{name} {subject}" + (f" to {_short(args[1])}" if name == "rename" else ""))
            return result

        return call


def _short(path: Any) -> str:
    """The name without what is random in it."""
    name = Path(path).name
    return ".".join(["", *name.split(".")[1:3], "tmp"]) if name.endswith(".tmp") else name


def of_step(
    step: int, files: tuple[ManifestFile, ...], generation: int, layout: Layout = Layout.RANK
) -> Manifest:
    return Manifest(
        job="job-a",
        run=1,
        rank=0,
        world_size=1,
        incarnation=1,
        generation=generation,
        step=step,
        epoch=1,
        step_in_epoch=step,
        files=files,
        layout=layout,
        versions={},
        integrated=layout is Layout.RANK,
    )


def save(directory: Path, name: str, content: bytes, generation: int, others: tuple[str, ...] = ()) -> None:
    def write(stream: Any) -> None:
        stream.write(content[:5])
        stream.write(content[5:])

    def manifest(files: tuple[ManifestFile, ...]) -> Manifest:
        return of_step(int(name[8]), files, generation)

    stem = Path(name).stem
    beside = [Content(f"{stem}.{other}", write, FileRole.SIDE) for other in others]
    publish(directory, [Content(name, write), *beside], manifest)


def adopt_step(directory: Path, step: int, content: bytes, generation: int) -> None:
    """A framework has written over the folder, if there was one; then it becomes a checkpoint."""
    folder = directory / f"step_{step}"
    (folder / "within").mkdir(parents=True, exist_ok=True)
    for name in ("a", "within/b"):
        (folder / name).write_bytes(content)
    adopt_folder(
        folder,
        lambda files: of_step(step, files, generation, Layout.FOREIGN),
        lambda: True,
        rank=0,
        shared_by=1,
    )


def attempt_folder(mode: str, scenario: str, directory: Path, stop_at: int) -> Stopper:
    """As `attempt`."""
    adopt_step(directory, 1, b"the older state", 1)
    if scenario.startswith("again"):
        adopt_step(directory, 2, b"saved before the rollback", 1)
    stopper = Stopper(mode, stop_at)
    stopper.install()
    adopt_step(directory, 2, b"saved  after the rollback", 2)
    return stopper


def attempt_fetched(mode: str, directory: Path, stop_at: int) -> Stopper:
    """As `attempt`. What is fetched lies below; it is read before anything is counted."""
    save(directory, "train-1_1.ckpt", b"the older state", 1, ("side",))
    save(directory / "source", "train-1_2.ckpt", b"saved by another node", 2, ("side", "more"))
    path = directory / "source" / "train-1_2.ckpt"
    found = verify.check(path)
    wanted = Wanted(job=found.job, run=1, rank=0, world_size=1, step=2, digest=found.digest)
    sealed, contents = sealed_bytes(path), [one.read_bytes() for one in found.paths(path.parent)]
    stopper = Stopper(mode, stop_at)
    stopper.install()
    with Receipt(directory, wanted) as receipt:
        receipt.accept(sealed)
        for number, content in enumerate(contents):
            receipt.begin(number)
            receipt.take(content[:5])
            receipt.take(content[5:])
            receipt.end(number)
        receipt.publish()
    return stopper


def attempt(mode: str, scenario: str, directory: Path, stop_at: int) -> Stopper:
    """One process: an older checkpoint, then the one that is stopped."""
    if scenario.endswith("folder"):
        return attempt_folder(mode, scenario, directory, stop_at)
    if scenario.endswith("fetched"):
        return attempt_fetched(mode, directory, stop_at)
    # A set that is saved again has another file than before, so one of the old ones is written over by none.
    before, after = (("side", "old"), ("side", "new")) if scenario.endswith("set") else ((), ())
    save(directory, "train-1_1.ckpt", b"the older state", 1, before)
    if scenario.startswith("again"):
        save(directory, "train-1_2.ckpt", b"saved before the rollback", 1, before)
    stopper = Stopper(mode, stop_at)
    stopper.install()
    save(directory, "train-1_2.ckpt", b"saved  after the rollback", 2, after)
    return stopper


def main() -> None:
    mode, scenario, root = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if mode == "trace":
        print(json.dumps(attempt(mode, scenario, root / "0", -1).trace))
        return
    for stop_at in range(1, STEPS_MAX):
        child = os.fork()
        if not child:
            code = 99
            try:
                stopper = attempt(mode, scenario, root / str(stop_at), stop_at)
                code = SAVED_ANYWAY if stopper.count >= stop_at else 0
            except CheckpointWriteError:
                code = 43
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print(json.dumps([stop_at, os.waitstatus_to_exitcode(status)]))
        if status == 0:
            return


if __name__ == "__main__":
    main()
