"""A file with a manifest is whole, at every moment and after every failure."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest

import recovery
from recovery.checkpoint import catalogue, names, verify
from recovery.checkpoint.contribution import Manifest, ManifestFile
from recovery.checkpoint.durable_files import DigestingWriter
from recovery.checkpoint.publish import Content, publish
from recovery.errors import CheckpointWriteError
from tests.small_disk import small_disk

if TYPE_CHECKING:
    from tests.checkpoint.conftest import Save

ROOT = Path(recovery.__file__).parents[1]
CHILD = Path(__file__).with_name("publish_child.py")
SCENARIOS = ("fresh", "again", "fresh set", "again set", "fresh fetched")


def _run(*args: object, script: Path | None = CHILD) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *([str(script)] if script else []), *map(str, args)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


def _sweep(mode: str, scenario: str, root: Path) -> list[tuple[Path, int]]:
    """Per place where publishing was stopped: the directory that is left, and how it ended."""
    done = _run(mode, scenario, root)
    assert done.returncode == 0, done.stderr
    return [(root / str(number), code) for number, code in map(json.loads, done.stdout.splitlines())]


def _assert_only_whole_checkpoints(directory: Path) -> list[int]:
    """The steps that a scan finds, each verified to the last bit, the older one among them."""
    held = catalogue.scan(directory, None, job="job-a", run=1, rank=0)
    for checkpoint in held:
        assert verify.check(Path(checkpoint.path)).digest == checkpoint.digest
    for manifest in directory.glob("*.json"):
        verify.check(manifest.with_suffix(".ckpt"))
    assert held[-1].step == 1, f"{directory}: the older checkpoint is gone"
    return [checkpoint.step for checkpoint in held]


def test_a_checkpoint_is_durable_before_its_name_and_its_manifest_comes_last(tmp_path: Path) -> None:
    trace = json.loads(_run("trace", "fresh", tmp_path).stdout)

    assert trace == [
        "open 0",
        "open .train-1_2.ckpt.tmp",
        "write .train-1_2.ckpt.tmp",
        "fsync .train-1_2.ckpt.tmp",
        "close .train-1_2.ckpt.tmp",
        "open .train-1_2.json.tmp",
        "write .train-1_2.json.tmp",
        "fsync .train-1_2.json.tmp",
        "close .train-1_2.json.tmp",
        "rename .train-1_2.ckpt.tmp to train-1_2.ckpt",
        "fsync 0",
        "rename .train-1_2.json.tmp to train-1_2.json",
        "fsync 0",
        "close 0",
    ]


def test_a_step_saved_again_loses_its_old_manifest_before_its_old_bytes(tmp_path: Path) -> None:
    trace = json.loads(_run("trace", "again", tmp_path).stdout)

    unlinked = trace.index("unlink train-1_2.json")
    assert trace[unlinked + 1 : unlinked + 3] == ["fsync 0", "rename .train-1_2.ckpt.tmp to train-1_2.ckpt"]


@pytest.mark.faults
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_sigkill_before_any_system_call_leaves_only_whole_checkpoints(tmp_path: Path, scenario: str) -> None:
    sweep = _sweep("kill", scenario, tmp_path)

    assert [code for _, code in sweep] == [-9] * (len(sweep) - 1) + [0]
    found = [_assert_only_whole_checkpoints(directory) for directory, _ in sweep]
    assert found[-1] == [2, 1]
    assert [1] in found, "at some moment the new one is not visible yet"


@pytest.mark.faults
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_killed_at_any_system_call_keeps_its_prefix(tmp_path: Path, scenario: str) -> None:
    for directory, _ in _sweep("kill", scenario, tmp_path):
        assert catalogue.free_prefix(directory, "train", job="job-a", run=1) == "train", directory
        # Also when the half-done one is the only one.
        for older in directory.glob("train-1_1.*"):
            older.unlink()
        if scenario.startswith("fresh"):
            assert catalogue.free_prefix(directory, "train", job="job-a", run=1) == "train", directory


@pytest.mark.faults
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_error_of_any_system_call_is_one_error_that_leaves_no_temporary_file(
    tmp_path: Path, scenario: str
) -> None:
    sweep = _sweep("fail", scenario, tmp_path)

    codes = [code for _, code in sweep]
    assert set(codes) <= {43, 10, 0}
    reads_of_the_old_one = {"fresh": 1, "again": 3, "fresh set": 1, "again set": 5, "fresh fetched": 1}[
        scenario
    ]
    assert codes.count(10) == reads_of_the_old_one, "an old one that cannot be read is no reason not to save"
    for directory, _ in sweep:
        _assert_only_whole_checkpoints(directory)
        assert not [file.name for file in directory.iterdir() if file.name.endswith(".tmp")]


def test_a_stale_temporary_file_of_an_earlier_process_is_left_alone(save: Save) -> None:
    save.directory.mkdir()
    stale = save.directory / f".train-1_1.ckpt.{os.getpid()}-0000000000000000.tmp"
    stale.write_bytes(b"half")

    path = save()

    assert verify.check(path).step == 1
    assert stale.read_bytes() == b"half"
    assert sorted(file.name for file in save.directory.iterdir()) == sorted(
        [stale.name, "train-1_1.ckpt", "train-1_1.json"]
    )


def test_files_are_for_their_owner_only(save: Save) -> None:
    path = save()

    assert {file.stat().st_mode & 0o777 for file in (path, names.manifest_path(path))} == {0o600}


def test_a_missing_directory_and_its_parents_are_made(tmp_path: Path, save: Save) -> None:
    save.directory = tmp_path / "a" / "b" / "c"

    assert verify.check(save()).job == "job-a"


def test_a_relative_directory_gives_an_absolute_path(
    tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save.directory = Path("here")

    assert save() == tmp_path / "here" / "train-1_1.ckpt"


def test_a_file_in_place_of_the_directory_is_a_write_error(tmp_path: Path, save: Save) -> None:
    (tmp_path / "ckpt").write_bytes(b"")

    with pytest.raises(CheckpointWriteError, match="File exists"):
        save()


def test_a_path_too_long_to_be_reported_is_refused_before_anything_is_written(
    tmp_path: Path, save: Save
) -> None:
    save.directory = tmp_path.joinpath(*["d" * 200] * 6)

    with pytest.raises(CheckpointWriteError, match="longer than 1024 characters"):
        save()
    assert not list(tmp_path.iterdir())


def test_a_path_that_no_message_can_carry_is_refused(tmp_path: Path, save: Save) -> None:
    save.directory = tmp_path / os.fsdecode(b"\xff")

    with pytest.raises(CheckpointWriteError, match="not UTF-8"):
        save()


@pytest.mark.parametrize("other", [{"job": "job-b"}, {"run": 2}, {"rank": 1}])
def test_a_checkpoint_of_another_job_run_or_rank_is_never_written_over(
    save: Save, other: dict[str, Any]
) -> None:
    path = save(content=b"theirs", **other)

    with pytest.raises(CheckpointWriteError, match="has saved under this name"):
        save(content=b"ours")
    assert path.read_bytes() == b"theirs"
    verify.check(path)


def test_a_step_saved_again_replaces_the_old_file_and_manifest(save: Save) -> None:
    save(content=b"first", generation=1)

    path = save(content=b"second", generation=2)

    assert path.read_bytes() == b"second"
    assert verify.check(path).generation == 2


def test_a_manifest_of_other_bytes_is_a_bug_of_ours(save: Save) -> None:
    with pytest.raises(AssertionError, match="just written"):
        publish(
            save.directory,
            [Content("train-1_1.ckpt", lambda s: None)],
            lambda files: save.manifest(),
        )
    assert not list(save.directory.iterdir())


@pytest.mark.parametrize("name", ["../train-1_1.ckpt", "train.ckpt", ".train-1_1.ckpt", "train-1_1.json"])
def test_only_a_checkpoint_name_is_published(save: Save, name: str) -> None:
    with pytest.raises(AssertionError, match="no checkpoint name"):
        save(name)


class _StopTraining(BaseException):
    """Like GenerationInterrupted: passes `except Exception`."""


@pytest.mark.parametrize("error", [ValueError("state"), _StopTraining("go")])
def test_what_the_state_raises_passes_through_and_nothing_is_left(save: Save, error: BaseException) -> None:
    def write(stream: BinaryIO) -> None:
        stream.write(b"half")
        raise error

    with pytest.raises(type(error)) as caught:
        publish(save.directory, [Content("train-1_1.ckpt", write)], lambda files: save.manifest(files=files))
    assert caught.value is error
    assert not list(save.directory.iterdir())


def test_an_os_error_of_the_state_is_a_write_error(save: Save) -> None:
    def write(stream: BinaryIO) -> None:
        raise OSError("no number and no sentence of the system")

    with pytest.raises(CheckpointWriteError, match="no number and no sentence"):
        publish(save.directory, [Content("train-1_1.ckpt", write)], lambda files: save.manifest(files=files))


def test_a_failed_write_that_the_state_swallows_still_fails_the_save(save: Save) -> None:
    def write(stream: BinaryIO) -> None:
        os.close(stream._descriptor)  # type: ignore[attr-defined]  # the engine's stream
        with contextlib.suppress(OSError):
            stream.write(b"into nothing")
        # The number may be used again by now: the writer must not try it again.
        reader, writer = os.pipe()
        with contextlib.suppress(OSError):
            stream.write(b"into another file")
        os.close(writer)
        seen.append(os.read(reader, 100))
        os.dup2(reader, stream._descriptor)  # type: ignore[attr-defined]  # the engine's stream
        if reader != stream._descriptor:  # type: ignore[attr-defined]  # the engine's stream
            os.close(reader)

    seen: list[bytes] = []
    with pytest.raises(CheckpointWriteError, match="Bad file descriptor"):
        publish(save.directory, [Content("train-1_1.ckpt", write)], lambda files: save.manifest(files=files))
    assert seen == [b""]


def test_a_newer_generation_of_the_same_step_is_never_written_over(save: Save) -> None:
    path = save(content=b"newer", generation=4)
    with pytest.raises(CheckpointWriteError, match="generation 4 has saved this step"):
        save(content=b"of a process that is fenced and has not heard of it", generation=3)

    assert path.read_bytes() == b"newer"
    assert verify.check(path).generation == 4


def test_the_writer_takes_what_writers_hand_it_and_cannot_go_back(tmp_path: Path) -> None:
    import numpy as np

    with (tmp_path / "file").open("wb") as file, DigestingWriter(file.fileno()) as writer:
        assert writer.write(b"bytes") == 5
        assert writer.write(memoryview(b"view")) == 4
        assert writer.write(np.arange(3, dtype=np.int64).data) == 24
        assert writer.write(b"") == 0
        writer.drain()
        assert writer.writable()
        assert writer.size == 33
        with pytest.raises(io.UnsupportedOperation):
            writer.seek(0)
    assert (tmp_path / "file").stat().st_size == 33


def test_torch_saves_through_the_writer_and_loads_the_same_tensors(save: Save) -> None:
    import torch

    weight = torch.arange(10_000, dtype=torch.float32)

    def manifest(files: tuple[ManifestFile, ...]) -> Manifest:
        return save.manifest(files=files)

    _, path = publish(
        save.directory,
        [Content("train-1_1.ckpt", lambda stream: torch.save({"weight": weight, "step": 7}, stream))],
        manifest,
    )

    verify.check(path)
    loaded = torch.load(path, weights_only=True)
    assert loaded["step"] == 7
    assert torch.equal(loaded["weight"], weight)


_FILE_TOO_LARGE = """
import resource, sys, torch
from pathlib import Path
from recovery.checkpoint.publish import Content, publish
from recovery.errors import CheckpointWriteError
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    state = Content("train-1_2.ckpt", lambda s: torch.save({"w": torch.zeros(100_000)}, s))
    publish(Path(sys.argv[1]), [state], None)
except CheckpointWriteError as error:
    print(error.code, error.parts["reason"])
"""


@pytest.mark.faults
def test_a_disk_that_takes_no_more_of_torch_save_is_a_write_error_with_its_cause(save: Save) -> None:
    older = save()

    done = _run("-c", _FILE_TOO_LARGE, save.directory, script=None)

    assert (
        done.stdout
        == "CHECKPOINT_WRITE File too large: a file would be larger than this process may make one (ulimit -f)\n"
    ), done.stderr
    verify.check(older)
    assert sorted(file.name for file in save.directory.iterdir()) == ["train-1_1.ckpt", "train-1_1.json"]


@pytest.mark.root
def test_a_full_disk_is_a_write_error_and_the_older_checkpoint_stays(save: Save) -> None:
    with small_disk(save.directory, "size=64k"):
        older = save(content=b"x" * 10_000)
        with pytest.raises(CheckpointWriteError, match="No space left on device"):
            save("train-1_2.ckpt", content=b"x" * 100_000)
        verify.check(older)
        assert len(list(save.directory.iterdir())) == 2

        # There is space again: nothing was left behind.
        newer = save("train-1_2.ckpt", content=b"x" * 20_000)
        # The state fits, but not its manifest.
        with pytest.raises(CheckpointWriteError, match="No space left on device"):
            save("train-1_2.ckpt", content=b"y" * 24_576, generation=2)
        assert verify.check(newer).generation == 1
