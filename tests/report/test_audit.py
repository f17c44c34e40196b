"""`recovery verify` finds what is damaged or gone of checkpoints and of copies, and says what it cannot look at."""

from __future__ import annotations

import functools
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from recovery.checkpoint.adopt import adopt_folder
from recovery.checkpoint.catalogue import held_of
from recovery.checkpoint.contribution import Layout
from recovery.checkpoint.verify import check
from recovery.cli.verify import verify
from recovery.core.copy_records import CopyState, to_copy_record
from recovery.core.ids import NodeId, Rank
from recovery.core.records import CheckpointState, Record, to_record
from recovery.report import audit
from recovery.report.stored import Stored, read_stored
from recovery.store.repository import SchedulerStore
from tests.report.saved_steps import copies_of_rank_1, copy_step, of_step, publish_files
from tests.store.any_records import WALL_MS, job, node

STEP = 5
HERE, ELSEWHERE = "127.0.0.1", "192.0.2.7"
"""The second one is of no host (RFC 5737)."""


def stored(place: Path, records: list[Record], host: str = HERE) -> Stored:
    nodes = [node(f"worker_{rank}", rank=Rank(rank), host=host) for rank in range(2)]
    store = SchedulerStore.open(place)
    store.apply(
        [msgspec.structs.replace(job(), job="job", worker_count=2), *nodes, *records], wall_ms=WALL_MS
    )
    store.close()
    return read_stored(place)


def own(tmp_path: Path) -> Path:
    return tmp_path / "own"


def other(tmp_path: Path) -> Path:
    return tmp_path / "job" / "other"


def copies(tmp_path: Path) -> Path:
    return copies_of_rank_1(tmp_path / "job")


def two_ranks(tmp_path: Path, host: str = HERE) -> Stored:
    """Each has saved a step, and worker_0 holds a copy of rank 1's."""
    place = tmp_path / "job"
    place.mkdir()
    paths = [
        publish_files(own(tmp_path), STEP, rank=0),
        copy_step(place, STEP),
        *copies(tmp_path).glob("*.ckpt"),
    ]
    first, second, copied = (held_of(check(path), path) for path in paths)
    return stored(
        place,
        [
            to_record(Rank(0), first, CheckpointState.COMMITTED),
            to_record(Rank(1), second, CheckpointState.COMMITTED),
            to_copy_record(NodeId("worker_0"), Rank(1), copied, CopyState.HELD),
        ],
        host,
    )


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def found(state: Stored) -> list[tuple[str, str]]:
    return [(one.path, one.what) for one in audit.checkpoints(lambda: state)]


def test_what_is_whole_is_found_so(tmp_path: Path) -> None:
    state = two_ranks(tmp_path)
    assert found(state) == []
    assert audit.not_looked_at(state) == ()


@pytest.mark.parametrize(
    ("damage", "where", "says"),
    [
        (lambda place: flip(next(place.glob("*.ckpt"))), copies, "does not match its manifest"),
        (lambda place: flip(next(place.glob("*.side"))), copies, "does not match its manifest"),
        (
            lambda place: next(place.glob("*.json")).unlink(),
            copies,
            "it is missing, so the file beside it is no checkpoint",
        ),
        (shutil.rmtree, copies, "worker_0 has said that it holds a copy of rank 1's"),
        (shutil.rmtree, own, "says that rank 0 holds step 5 there"),
        (shutil.rmtree, other, "says that rank 1 holds step 5 there"),
    ],
    ids=["flipped copy", "flipped side", "copy without manifest", "no copy", "no directory", "no other"],
)
def test_damage_and_loss_are_findings(
    tmp_path: Path, damage: Callable[[Path], None], where: Callable[[Path], Path], says: str
) -> None:
    state = two_ranks(tmp_path)
    damage(where(tmp_path))
    [(path, what)] = found(state)
    assert Path(path).is_relative_to(where(tmp_path))
    assert says in what


def test_what_a_living_job_removes_meanwhile_is_no_finding(tmp_path: Path) -> None:
    state = two_ranks(tmp_path)
    [older] = own(tmp_path).glob("*.ckpt")
    newer = publish_files(own(tmp_path), STEP + 1, rank=0)
    for file in check(older).paths(own(tmp_path)):
        file.unlink()
    looks: list[Stored] = []

    def read() -> Stored:
        if looks:
            # Its files go first, then its manifest; the step that came in its place was committed before.
            older.with_suffix(".json").unlink()
            record = to_record(Rank(0), held_of(check(newer), newer), CheckpointState.COMMITTED)
            looks.append(msgspec.structs.replace(state, checkpoints=(*state.checkpoints, record)))
        else:
            looks.append(state)
        return looks[-1]

    assert audit.checkpoints(read) == []
    assert len(looks) == 2
    flip(newer)
    assert [one.path for one in audit.checkpoints(lambda: looks[-1])] == [str(newer)]


def test_a_directory_and_a_draft_that_go_meanwhile_are_no_finding(tmp_path: Path) -> None:
    assert audit._listed(tmp_path / "gone") == ()
    assert not audit._is_left_over(tmp_path / ".small.0.tmp")


def test_a_copy_that_nobody_has_reported_is_looked_at(tmp_path: Path) -> None:
    """Its holder was lost before it could say so, or a rebuilt store does not know it."""
    place = tmp_path / "job"
    place.mkdir()
    copy_step(place, STEP)
    state = stored(place, [])
    assert found(state) == []
    flip(next(copies(tmp_path).glob("*.ckpt")))
    [(path, _)] = found(state)
    assert Path(path).parent == copies(tmp_path)


def test_what_is_on_another_host_is_said_and_is_no_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = two_ranks(tmp_path, ELSEWHERE)
    for place in (own, other, copies):
        shutil.rmtree(place(tmp_path))
    assert found(state) == []
    verify(tmp_path / "job")
    told = capsys.readouterr()
    assert told.out == "all is as it was written\n"
    assert told.err.count("not looked at: ") == told.err.count(", on another host\n") == 3


def test_a_path_that_was_copied_to_another_host_says_nothing_of_files_there(tmp_path: Path) -> None:
    state = two_ranks(tmp_path)
    shutil.rmtree(own(tmp_path))
    assert len(found(state)) == 1
    [holder] = (tmp_path / "job").glob("scheduler.db*.holder")
    holder.write_bytes(holder.read_bytes().replace(socket.gethostname().encode(), b"another-host"))
    assert found(state) == []
    assert len(audit.not_looked_at(state)) == 1


def two_folders(tmp_path: Path) -> tuple[Stored, Path]:
    """Two steps that two ranks have written together into one folder each. Where these are."""
    directory = tmp_path / "ckpt"
    records = []
    for step in (STEP - 1, STEP):
        folder = directory / f"step_{step}"
        folder.mkdir(parents=True)
        for rank in range(2):
            (folder / f"__{rank}_0.distcp").write_bytes(b"shards")
        for rank in range(2):
            make = functools.partial(of_step, step, rank=rank, layout=Layout.FOREIGN)
            manifest = adopt_folder(folder, make, lambda: True, rank=rank, shared_by=2)
            records.append(to_record(Rank(rank), held_of(manifest, folder), CheckpointState.COMMITTED))
    (tmp_path / "job").mkdir()
    return stored(tmp_path / "job", [*records]), directory


def test_of_a_folder_each_rank_needs_its_own_manifest(tmp_path: Path) -> None:
    state, directory = two_folders(tmp_path)
    assert found(state) == []
    (directory / "step_5.rank1.json").unlink()
    [(path, what)] = found(state)
    assert path == f"{directory}/step_5/"
    assert "rank 1 holds step 5 there" in what


@pytest.mark.parametrize("step", [STEP - 1, STEP])
def test_a_damaged_manifest_of_a_folder_is_a_finding_whatever_its_step(tmp_path: Path, step: int) -> None:
    state, directory = two_folders(tmp_path)
    manifest = directory / f"step_{step}.rank1.json"
    flip(manifest)
    [(path, what)] = found(state)
    assert path == str(manifest)
    assert "CHECKPOINT_MANIFEST" in what


def test_a_json_file_beside_a_folder_of_the_same_name_is_the_frameworks(tmp_path: Path) -> None:
    state, directory = two_folders(tmp_path)
    (directory / "logs").mkdir()
    (directory / "logs.json").write_text("{}")
    assert found(state) == []
