"""Checkpoints of every kind that are interrupted at every system call: files, folders, copies of another node's, memory.

Each kind is saved step by step, and what is older is removed behind it. A next process finds the newest acknowledged step or the one after
it, whatever it finds verifies, and it saves the next step in the same place.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from recovery.checkpoint import catalogue, verify
from recovery.checkpoint.adopt import adopt_folder
from recovery.checkpoint.contribution import FileRole, Layout, Manifest, ManifestFile
from recovery.checkpoint.fetched import Receipt, sealed_bytes
from recovery.checkpoint.memory_tier import MemoryHome, clear_up
from recovery.checkpoint.publish import Content, publish
from recovery.checkpoint.retention import Retention, Rule
from recovery.core.ids import Rank, RunId
from recovery.core.messages import HeldCheckpoint
from recovery.errors import CheckpointWriteError
from recovery.worker.held_copies import Copies
from tests.faults.task import Acknowledge, Task

RUN = RunId(1)
STEPS = range(2, 6)
"""Saved while the task is interrupted; step 1 is there before."""
NEXT = 9
"""What the next process saves."""
FOLDER_FILES = ("a", "within/b")
_MEMORY_OF = Path("/job")
"""Recovery path of the job in memory, wherever its files lie."""

Save = Callable[[Path, int], object]
"""Saves one step below a directory."""


# --- the kinds -----------------------------------------------------------------------------------------------------------


def of_step(
    number: int,
    files: tuple[ManifestFile, ...],
    *,
    rank: int = 0,
    ranks: int = 1,
    layout: Layout = Layout.RANK,
) -> Manifest:
    """The manifest of one rank of some job."""
    return Manifest(
        job="job",
        run=RUN,
        rank=rank,
        world_size=ranks,
        incarnation=1,
        generation=1,
        step=number,
        epoch=number,
        step_in_epoch=1,
        files=files,
        layout=layout,
        versions={},
        integrated=layout is Layout.RANK,
    )


def content_of(number: int, name: str = "") -> bytes:
    """Some bytes of one file of a step."""
    return hashlib.sha256(f"{number} {name}".encode()).digest() * 5_000


def publish_step(place: Path, number: int) -> None:
    """Save one checkpoint of one file below `place`."""
    publish_files(place / "ckpt", number)


def publish_files(
    directory: Path,
    number: int,
    *others: str,
    rank: int = 0,
    ranks: int = 1,
    layout: Layout = Layout.RANK,
) -> Path:
    """Save a rank's checkpoint of a step, with more files of these suffixes beside the first."""
    stem = f"train-{number}_1" if ranks == 1 else f"train_rank_{rank}-{number}_1"
    role = FileRole.STATE if layout is Layout.RANK else FileRole.PART

    def write(name: str) -> Callable[[BinaryIO], None]:
        return lambda stream: _fill(stream, content_of(number, name))

    beside = [Content(f"{stem}.{other}", write(other), FileRole.SIDE) for other in others]
    return publish(
        directory,
        [Content(f"{stem}.ckpt", write(stem), role), *beside],
        lambda files: of_step(number, files, rank=rank, ranks=ranks, layout=layout),
    )[1]


def _fill(stream: BinaryIO, content: bytes) -> None:
    stream.write(content)


def publish_set(place: Path, number: int) -> None:
    """Save one checkpoint of three files."""
    publish_files(place / "ckpt", number, "side", "more")


def publish_shared(place: Path, number: int) -> None:
    """Save one state that two ranks share, each its parts and what it alone has."""
    for rank in range(2):
        publish_files(place / "ckpt", number, "side", rank=rank, ranks=2, layout=Layout.SHARED)


def adopt_step(place: Path, number: int) -> None:
    """Let a framework write a folder, then make a checkpoint of it."""
    folder = place.absolute() / "ckpt" / f"step_{number}"
    try:
        (folder / "within").mkdir(parents=True, exist_ok=True)
        for name in FOLDER_FILES:
            (folder / name).write_bytes(content_of(number, name))
    except OSError as error:
        # The framework's own error: whoever writes the folder does not go on to the adoption.
        raise CheckpointWriteError(path=folder, reason=str(error)) from error
    adopt_folder(
        folder,
        lambda files: of_step(number, files, layout=Layout.FOREIGN),
        lambda: True,
        rank=0,
        shared_by=1,
    )


def publish_others(place: Path, *numbers: int) -> None:
    """Save what another node has, of which copies are made."""
    for number in numbers:
        publish_files(place / "other", number, "side", rank=1, ranks=2)


def copy_step(place: Path, number: int) -> None:
    """Make a copy of what another node has saved, piece by piece."""
    path = place / "other" / f"train_rank_1-{number}_1.ckpt"
    manifest = verify.check(path)
    wanted = verify.Wanted(job="job", run=RUN, rank=1, world_size=2, step=number, digest=manifest.digest)
    with Receipt(_copies(place).directory("job", RUN, Rank(1)), wanted) as receipt:
        receipt.accept(sealed_bytes(path))
        for position, file in enumerate(manifest.paths(path.parent)):
            receipt.begin(position)
            receipt.take(file.read_bytes())
            receipt.end(position)
        receipt.publish()


def _copies(place: Path) -> Copies:
    return Copies(place, "worker_0")


def open_memory(place: Path) -> MemoryHome:
    """Hold the job's directory in memory."""
    base = place / "memory"
    base.mkdir(exist_ok=True)
    try:
        return MemoryHome(base, "job", _MEMORY_OF)
    except OSError as error:
        raise CheckpointWriteError(path=base, reason=str(error)) from error


def publish_in_memory(place: Path, number: int) -> None:
    """Save one checkpoint of two files in memory."""
    home = open_memory(place)
    publish_files(_memory_of_rank(home), number, "side")
    home.leave(job_is_over=False)


def _memory_of_rank(home: MemoryHome) -> Path:
    try:
        return home.directory(RUN, 0)
    except OSError as error:
        raise CheckpointWriteError(path=home.root, reason=str(error)) from error


# --- what is there -------------------------------------------------------------------------------------------------------


def held_in(directory: Path, rank: int) -> tuple[HeldCheckpoint, ...]:
    """What a rank may use of a directory, the newest step first."""
    return catalogue.scan(directory, None, job="job", run=RUN, rank=rank)


def _retire(directory: Path, number: int, *ranks: int) -> None:
    """Remove what is older than the step before this one, as the ranks do."""
    for rank in ranks:
        look = functools.partial(catalogue.list_directory, directory, None, job="job", run=RUN, rank=rank)
        rule = Rule(keep_checkpoint_max=2, keep_checkpoint_per_n_minutes=0)
        Retention(look, rule, lambda path: False, rank=rank).apply(previous_durable_step=number - 1)


def _newest(directory: Path, *ranks: int) -> int:
    """The newest step that all ranks hold; each of theirs must verify."""
    steps: list[set[int]] = []
    for rank in ranks:
        held = held_in(directory, rank)
        for one in held:
            verify.check(Path(one.path))
        steps.append({one.step for one in held})
    return max(set.intersection(*steps), default=0)


def _memory_directory(place: Path) -> Path:
    [root] = (place / "memory").iterdir()
    return root / f"run-{RUN}-rank-0"


class Kind(NamedTuple):
    """One way to keep a step."""

    name: str
    save: Save
    directory: Callable[[Path], Path] = lambda place: place / "ckpt"
    """Where its steps lie."""
    ranks: tuple[int, ...] = (0,)
    """Whose contributions make a step."""
    retire: Save | None = None
    """Removes what a step makes needless, where not every rank does it for itself."""
    at_last: Callable[[Path], None] = lambda place: None
    """What is done behind the next process."""

    def task(self) -> Task:
        """Save steps and remove older ones; the next process finds the newest one and goes on."""
        return Task(self.name, self._prepare, self._work, self._look)

    def newest(self, place: Path) -> int:
        """The newest step that is whole, after each that is visible has verified."""
        return _newest(self.directory(place), *self.ranks)

    def _prepare(self, place: Path) -> object:
        place.mkdir()
        publish_others(place, 1, *STEPS, NEXT)
        self.save(place, 1)
        return None

    def _work(self, place: Path, _: object, acknowledge: Acknowledge) -> None:
        for number in STEPS:
            self.save(place, number)
            acknowledge()
            if self.retire is not None:
                self.retire(place, number)
            else:
                _retire(self.directory(place), number, *self.ranks)

    def _look(self, place: Path) -> object:
        found = self.newest(place)
        self.save(place, NEXT)
        assert self.newest(place) == NEXT, "the next process can go on"
        self.at_last(place)
        return found


def _keep_newest_copies(place: Path, number: int) -> None:
    _copies(place).keep_only("job", RUN, lambda _, copy: copy.step >= number - 1)


def _clear_memory(place: Path) -> None:
    clear_up(place / "memory", ended=_MEMORY_OF)
    assert not list((place / "memory").iterdir()), "a job that is over leaves nothing in memory"


FILE = Kind("checkpoint save", publish_step)
SET = Kind("save of several files", publish_set)
SHARED = Kind("save of a shared state", publish_shared, ranks=(0, 1))
FOLDER = Kind("adoption of a folder", adopt_step)
COPY = Kind(
    "copy for another node",
    copy_step,
    lambda place: _copies(place).directory("job", RUN, Rank(1)),
    ranks=(1,),
    retire=_keep_newest_copies,
)
MEMORY = Kind("save in memory", publish_in_memory, _memory_directory, at_last=_clear_memory)


# --- the end of memory ---------------------------------------------------------------------------------------------------


def _full_memory(place: Path) -> object:
    place.mkdir()
    for number in (1, 2):
        publish_in_memory(place, number)
    return None


def _leave_memory(place: Path, _: object, acknowledge: Acknowledge) -> None:
    open_memory(place).leave(job_is_over=True)
    acknowledge()


def _find_cleared(place: Path) -> object:
    # Whatever is left is nobody's: a job of the same name can begin there, and its end leaves nothing.
    publish_in_memory(place, NEXT)
    assert _newest(_memory_directory(place), 0) == NEXT
    _clear_memory(place)
    return None


CHECKPOINT_TASKS = (
    *(kind.task() for kind in (FILE, SET, SHARED, FOLDER, COPY, MEMORY)),
    Task("clearing of memory", _full_memory, _leave_memory, _find_cleared),
)
