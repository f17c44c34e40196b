"""Removes older checkpoints, for every framework alike; `core/policy/retention.py` decides which.

Nothing else of ours removes a checkpoint. name_conflict.py only takes the manifest of a file that is about to be written over.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import msgspec

from recovery.checkpoint import framework_folders, names
from recovery.checkpoint import manifest as manifests
from recovery.checkpoint.catalogue import Listing
from recovery.checkpoint.durable_files import reason_of
from recovery.core.policy.retention import Kept, removable
from recovery.errors import CheckpointError, CheckpointManifestError

_logger = logging.getLogger("recovery.checkpoint")


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept, in MindSpore's words; `core.policy.retention.removable` says what they mean."""

    keep_checkpoint_max: int
    keep_checkpoint_per_n_minutes: int


class Retention:
    """Removes what one rank need not keep. Files may come and go meanwhile: a framework removes some itself."""

    def __init__(
        self,
        look: Callable[[], Listing],
        rule: Rule,
        is_pinned: Callable[[Path], bool],
        *,
        rank: int | None = None,
    ) -> None:
        """Nothing is removed before `apply`.

        `look` lists the checkpoints as they are now. A file that `is_pinned` the framework removes itself: it counts as kept, and stays. `rank`
        says whose manifests count, of folders that have one for each rank.
        """
        self._look, self._rule, self._is_pinned, self._rank = look, rule, is_pinned, rank
        self._trouble: dict[Path, str] = {}
        """What could not be done, as it was logged: logged again when it changes."""

    def apply(self, *, previous_durable_step: int, pinned: Collection[int] = ()) -> None:
        """Remove what may go now. What cannot be looked at or removed stays, and is logged.

        What is left of a step whose files are not all there goes when the whole step would. It takes no whole one's place: what may go of
        those is decided without it.

        Args:
            previous_durable_step: newest step but one that every rank holds; 0: fewer than two are known, nothing goes.
            pinned: older steps that stay: what lies on other hosts, and what is being copied there.
        """
        try:
            found = self._look()
        except CheckpointError as error:
            # Nothing can be listed, so nothing is removed.
            self._log(Path(), str(error))
            return
        self._trouble.pop(Path(), None)
        whole = self._kept((checkpoint.step, Path(checkpoint.path)) for checkpoint in found.held)
        # The first file of what is left may be gone, its manifest is not.
        beside = [
            (checkpoint.step, names.manifest_beside(Path(checkpoint.path), self._rank))
            for checkpoint in found.remains
        ]
        as_if_whole = {**self._kept(beside), **whole}
        for kept, contributions in ((whole, found.held), (as_if_whole, found.remains)):
            goes = removable(
                list(kept.values()),
                previous_durable_step=previous_durable_step,
                keep_checkpoint_max=self._rule.keep_checkpoint_max,
                keep_checkpoint_per_n_minutes=self._rule.keep_checkpoint_per_n_minutes,
                pinned=pinned,
            )
            # The newest first: a framework's folder may stay only because a newer one needs it, which goes too.
            for checkpoint in sorted(contributions, key=lambda one: one.step, reverse=True):
                if checkpoint.step in goes and not self._is_pinned(Path(checkpoint.path)):
                    self._remove(Path(checkpoint.path))

    def _kept(self, found: Iterable[tuple[int, Path]]) -> dict[int, Kept]:
        kept: dict[int, Kept] = {}
        for step, path in found:
            saved_wall_s = self._saved_wall_s(path)
            if saved_wall_s is not None:
                kept.setdefault(step, Kept(step, saved_wall_s))
        return kept

    def _saved_wall_s(self, path: Path) -> float | None:
        """When the file was written; None: it is gone again, or cannot be looked at, and counts as neither kept nor removable."""
        try:
            return path.stat().st_mtime
        except FileNotFoundError:
            return None
        except OSError as error:
            self._log(path, reason_of(error))
            return None

    def _remove(self, path: Path) -> None:
        try:
            remove(path, rank=self._rank)
        except OSError as error:
            self._log(path, reason_of(error))
        else:
            self._trouble.pop(path, None)

    def _log(self, path: Path, reason: str) -> None:
        if self._trouble.get(path) != reason:
            self._trouble[path] = reason
            _logger.warning("event=checkpoint_not_removed path=%s reason=%r", path, reason)


def remove(path: Path, *, rank: int | None = None) -> None:
    """Remove a checkpoint: its files, then its manifest, which until then says whose they were. What is gone already is gone.

    Of a folder that all ranks write together a rank's part goes; the last rank leaves no folder.

    Raises:
        OSError: a file could not be removed; the manifest then stays beside it.
    """
    beside = names.manifest_beside(path, rank)
    if names.is_folder(path.name):
        _remove_folder(path, beside)
        return
    for file in (*_files_of(path, beside), beside):
        file.unlink(missing_ok=True)


def _files_of(path: Path, beside: Path) -> tuple[Path, ...]:
    """What the manifest lists; without one that can be trusted nothing but the file itself is known to belong to it."""
    try:
        return manifests.read_for(beside, file=path.name).paths(path.parent)
    except CheckpointManifestError:
        return () if names.is_folder(path.name) else (path,)


def _remove_folder(folder: Path, beside: Path) -> None:
    """Remove what the manifest lists but for what another rank's manifest lists too, then the manifest.

    Two ranks may do so at the same time, so the last look is behind one's own manifest.
    """
    files = _files_of(folder, beside)
    if not files and beside.exists():
        raise OSError(errno.EINVAL, "its manifest cannot be read, so nobody knows which files are its own")
    needed = _listed_by_others(folder, beside)
    _unlink(folder, [file for file in files if file not in needed])
    beside.unlink(missing_ok=True)
    if _listed_by_others(folder, beside):
        return
    if needed:
        _unlink(folder, files)
    if folder.exists():
        _logger.warning(
            "event=folder_not_removed path=%s reason='there is more in it than was saved'", folder
        )


def _listed_by_others(folder: Path, beside: Path) -> frozenset[Path]:
    others = [manifest for manifest in framework_folders.manifests_of_ranks(folder) if manifest != beside]
    return frozenset(file for other in others for file in _files_of(folder, other))


def _unlink(folder: Path, files: Sequence[Path]) -> None:
    """Remove files, and the folders that are empty then. What is in them besides is not ours: it stays, and they with it."""
    for file in files:
        # A folder within may be gone as a whole.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            file.unlink()
    within = {parent for file in files for parent in file.parents if folder in (parent, *parent.parents)}
    for directory in sorted(within, key=lambda path: len(path.parts), reverse=True):
        try:
            directory.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
