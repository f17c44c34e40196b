"""One executor removes older checkpoints, whoever else removes files of the directory meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from recovery.checkpoint import catalogue, names
from recovery.checkpoint.retention import Retention, Rule, remove

if TYPE_CHECKING:
    from tests.checkpoint.conftest import Save

KEEP_TWO = Rule(keep_checkpoint_max=2, keep_checkpoint_per_n_minutes=0)


def retention(
    directory: Path,
    *,
    after_the_look: Callable[[], object] = lambda: None,
    is_pinned: Callable[[Path], bool] = lambda path: False,
) -> Retention:
    def look() -> catalogue.Listing:
        found = catalogue.list_directory(directory, None, job="job-a", run=1, rank=0)
        after_the_look()
        return found

    return Retention(look, KEEP_TWO, is_pinned)


def left(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def pairs(*steps: int) -> list[str]:
    return sorted(f"train-1_{step}{suffix}" for step in steps for suffix in (".ckpt", ".json"))


def test_the_newest_stay_with_their_manifests_and_older_ones_go_with_theirs(save: Save) -> None:
    for step in range(1, 6):
        save(f"train-1_{step}.ckpt")

    retention(save.directory).apply(previous_durable_step=4)

    assert left(save.directory) == pairs(4, 5)


@pytest.mark.parametrize("gone", [1, 2, 4])
def test_a_file_that_vanishes_between_the_look_and_its_time_costs_nobody_anything(
    save: Save, gone: int
) -> None:
    for step in range(1, 6):
        save(f"train-1_{step}.ckpt")

    retention(save.directory, after_the_look=lambda: remove(save.directory / f"train-1_{gone}.ckpt")).apply(
        previous_durable_step=5
    )

    assert left(save.directory) == (pairs(3, 5) if gone == 4 else pairs(4, 5))


def test_a_directory_that_cannot_be_listed_loses_nothing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    executor = retention(tmp_path / "file")

    executor.apply(previous_durable_step=9)
    executor.apply(previous_durable_step=9)

    [line] = caplog.messages
    assert "event=checkpoint_not_removed" in line
    assert "cannot be listed" in line


def test_what_the_framework_removes_itself_is_spared_and_counts(save: Save) -> None:
    for step in range(1, 5):
        save(f"train-1_{step}.ckpt")

    retention(save.directory, is_pinned=lambda path: path.name == "train-1_1.ckpt").apply(
        previous_durable_step=4
    )

    assert left(save.directory) == pairs(1, 3, 4)


def test_every_file_of_a_step_that_goes_goes(save: Save) -> None:
    for prefix in ("train", "train_1"):
        for step in (1, 2, 3):
            save(f"{prefix}-1_{step}.ckpt")

    retention(save.directory).apply(previous_durable_step=3)

    assert left(save.directory) == sorted(
        f"{prefix}-1_{step}{suffix}"
        for prefix in ("train", "train_1")
        for step in (2, 3)
        for suffix in (".ckpt", ".json")
    )


def test_a_file_that_cannot_be_removed_keeps_its_manifest_and_is_logged_once(
    save: Save, caplog: pytest.LogCaptureFixture
) -> None:
    for step in range(1, 5):
        save(f"train-1_{step}.ckpt")
    in_the_way = save.directory / "train-1_1.ckpt"

    def replace_by_a_directory() -> None:
        """What nobody, root included, can unlink."""
        if in_the_way.is_file():
            in_the_way.unlink()
            in_the_way.mkdir()

    executor = retention(save.directory, after_the_look=replace_by_a_directory)
    executor.apply(previous_durable_step=4)

    assert left(save.directory) == sorted([*pairs(3, 4), *pairs(1)])
    [line] = caplog.messages
    assert f"path={in_the_way}" in line


def test_removing_takes_the_file_and_its_manifest_and_nothing_else(save: Save) -> None:
    paths = [save(f"train-1_{step}.ckpt") for step in (1, 2)]

    remove(paths[0])
    # It is gone already.
    remove(paths[0])

    assert left(save.directory) == pairs(2)
    assert names.manifest_path(paths[1]).exists()


def test_every_file_of_a_checkpoint_goes_and_its_manifest_last(save: Save) -> None:
    for step in range(1, 4):
        name = f"train-1_{step}.ckpt"
        save.set(name, {f"train-1_{step}.side": b"side"})

    retention(save.directory).apply(previous_durable_step=3)

    assert left(save.directory) == sorted([*pairs(2, 3), "train-1_2.side", "train-1_3.side"])


@pytest.mark.parametrize("gone", [[".ckpt"], [".side"], [".ckpt", ".side"]])
def test_what_is_left_of_a_step_whose_files_vanished_goes_when_the_step_would(
    save: Save, gone: list[str]
) -> None:
    for step in range(1, 6):
        path = save.set(f"train-1_{step}.ckpt", {f"train-1_{step}.side": b"side"})
        if step in (1, 2, 4):
            for suffix in gone:
                path.with_suffix(suffix).unlink()

    retention(save.directory).apply(previous_durable_step=3)

    of_step_4 = {".ckpt", ".side", ".json"} - set(gone)
    whole = {f"train-1_{step}{suffix}" for step in (3, 5) for suffix in (".ckpt", ".side", ".json")}
    assert set(left(save.directory)) == whole | {f"train-1_4{suffix}" for suffix in of_step_4}


def test_a_removal_that_is_stopped_between_two_files_is_finished_by_the_next(
    save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, 5):
        save.set(f"train-1_{step}.ckpt", {f"train-1_{step}.side": b"side"})
    unlink = Path.unlink

    def stop_at_the_second(path: Path, missing_ok: bool = False) -> None:
        if path.suffix != ".ckpt":
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as stopped:
        stopped.setattr(Path, "unlink", stop_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            retention(save.directory).apply(previous_durable_step=3)
    assert [name for name in left(save.directory) if "1_2" in name] == ["train-1_2.json", "train-1_2.side"]

    retention(save.directory).apply(previous_durable_step=3)

    assert left(save.directory) == sorted([*pairs(3, 4), "train-1_3.side", "train-1_4.side"])


def test_what_is_left_takes_no_whole_one_s_place(save: Save) -> None:
    for step in range(1, 5):
        save(f"train-1_{step}.ckpt")
    for step in (2, 3):
        (save.directory / f"train-1_{step}.ckpt").unlink()

    retention(save.directory).apply(previous_durable_step=4)

    assert left(save.directory) == sorted([*pairs(1, 4), "train-1_3.json"])


def test_a_damaged_step_stays_until_it_would_go_whole(save: Save) -> None:
    for step in range(1, 4):
        save(f"train-1_{step}.ckpt")
    (save.directory / "train-1_1.ckpt").write_bytes(b"longer than it was")
    (save.directory / "train-1_3.ckpt").write_bytes(b"longer than it was")

    retention(save.directory).apply(previous_durable_step=1)
    assert left(save.directory) == pairs(1, 2, 3)
    retention(save.directory).apply(previous_durable_step=2)
    assert left(save.directory) == pairs(2, 3)


@pytest.mark.parametrize("fields", [{"job": "job-b"}, {"run": 2}, {"rank": 1}])
def test_what_is_left_of_another_s_step_stays(save: Save, fields: dict[str, object]) -> None:
    save.set("train-1_1.ckpt", {"train-1_1.side": b"side"}, **fields).unlink()
    for step in range(2, 5):
        save(f"train-1_{step}.ckpt")

    retention(save.directory).apply(previous_durable_step=4)

    assert left(save.directory) == sorted([*pairs(3, 4), "train-1_1.json", "train-1_1.side"])


def test_what_is_left_without_a_sealed_manifest_stays(save: Save) -> None:
    save.set("train-1_1.ckpt", {"train-1_1.side": b"side"}).unlink()
    beside = save.directory / "train-1_1.json"
    beside.write_bytes(beside.read_bytes().replace(b'"step": 1', b'"step": 0'))
    for step in range(2, 5):
        save(f"train-1_{step}.ckpt")

    retention(save.directory).apply(previous_durable_step=4)

    assert left(save.directory) == sorted([*pairs(3, 4), "train-1_1.json", "train-1_1.side"])


def test_a_file_of_a_set_that_cannot_be_removed_keeps_the_manifest(save: Save) -> None:
    path = save.set("train-1_1.ckpt", {"train-1_1.side": b"side"})
    side = path.with_suffix(".side")
    side.unlink()
    side.mkdir()

    with pytest.raises(OSError, match=r"train-1_1\.side"):
        remove(path)

    assert names.manifest_path(path).exists()
