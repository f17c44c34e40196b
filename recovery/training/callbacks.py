"""What may be handed to `Session.steps`: LossMonitor and ModelCheckpoint, with MindSpore's names and rules."""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path
from typing import BinaryIO, Protocol

from typing_extensions import override

from recovery import clock
from recovery.checkpoint import catalogue, names
from recovery.checkpoint.manifest import FORMAT, Manifest
from recovery.checkpoint.publish import publish
from recovery.checkpoint.watch import DirectoryWatch
from recovery.core.ids import Generation, RunId
from recovery.core.messages import HeldCheckpoint
from recovery.core.policy.retention import Kept, removable
from recovery.errors import CheckpointWriteError
from recovery.training.checkpoint_config import CheckpointConfig
from recovery.training.session import Callback, Session

_logger = logging.getLogger("recovery.training")


class LossMonitor(Callback):
    """Prints `epoch: E step: S, loss is L`, S counted in the epoch, 1-based. Needs `session.report(loss=...)` in the loop.

    MindSpore's documents show this format and one with a comma after the epoch ("epoch: E, step: S, loss is L", the
    functional loop's); this is the callback's own.
    """

    def __init__(self, per_print_times: int = 1) -> None:
        """Print every `per_print_times` steps, and never when it is 0."""
        self._per_print_times = per_print_times

    @override
    def on_step_end(self, session: Session) -> None:
        """Print when it is time."""
        if self._per_print_times and session.step % self._per_print_times == 0 and session.loss is not None:
            print(  # noqa: T201 - the callback's product
                f"epoch: {session.epoch} step: {session.step_in_epoch}, loss is {float(session.loss)}",
                flush=True,
            )


class _Writable(Protocol):
    def write(self, stream: BinaryIO) -> None: ...


class ModelCheckpoint(Callback):
    """Saves the training state every so many steps, keeps as many as the configuration says, and never too few to recover.

    Files are `<prefix>-<epoch>_<step in epoch>.ckpt` with a manifest beside each. Every rank saves into a directory of its
    own. A save that fails costs nothing but itself: training goes on and older files stay.
    """

    def __init__(
        self, prefix: str = "CKP", directory: str | Path | None = None, config: CheckpointConfig | None = None
    ) -> None:
        """Choose name, place and rule.

        Args:
            prefix: of the file names.
            directory: one per rank, made if absent; None: the current directory.
            config: when to save and what to keep.
        """
        self._wanted_prefix, self._prefix = prefix, prefix
        self._directory = Path(directory or ".").resolve()
        self._config = config or CheckpointConfig()
        self._saved_step = 0
        self._saved_ms = 0
        self._known: dict[int, str] = {}
        """Digest by step of what was reported; empty while our own save of that step is under way."""
        self._thread: threading.Thread | None = None
        self._watch: DirectoryWatch | None = None

    @override
    def on_begin(self, session: Session) -> None:
        """Look at the directory, never touching what another run left there."""
        if session.recovery_enabled:
            self._config.check_for_recovery()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._prefix = catalogue.free_prefix(
            self._directory, self._wanted_prefix, job=session.job, run=session.run
        )
        session.checkpoint_directory(self._directory, self._prefix)
        self._saved_step, self._saved_ms = session.step, clock.monotonic_ms()
        self._known = {held.step: held.digest for held in self._scan(session)}
        self._watch = DirectoryWatch(self._directory, lambda: self._rescan(session))
        self._watch.start()
        session.on_generation_end(self._close)

    @override
    def on_step_end(self, session: Session) -> None:
        """Save when it is time."""
        if self._is_due(session):
            self._save(session)

    @override
    def on_end(self, session: Session) -> None:
        """Save the last step, as MindSpore does, and wait for a save under way."""
        if session.step != self._saved_step:
            self._save(session)
        self._join()

    def _is_due(self, session: Session) -> bool:
        if self._config.save_checkpoint_steps:
            return session.step - self._saved_step >= self._config.save_checkpoint_steps
        seconds = self._config.save_checkpoint_seconds
        return bool(seconds) and clock.monotonic_ms() - self._saved_ms >= seconds * 1000

    def _save(self, session: Session) -> None:
        state = session.state
        assert state is not None, "callbacks run inside steps()"
        self._saved_step, self._saved_ms = session.step, clock.monotonic_ms()
        position = (session.step, session.epoch, session.step_in_epoch)
        if not self._config.async_save:
            self._publish(session, state, position)
            return
        self._join()  # one save at a time: a disk that cannot keep up slows training instead of filling memory
        snapshot = state.snapshot()
        self._thread = threading.Thread(
            target=self._publish, args=(session, snapshot, position), name="recovery-save", daemon=True
        )
        self._thread.start()

    def _publish(self, session: Session, state: _Writable, position: tuple[int, int, int]) -> None:
        step, epoch, step_in_epoch = position
        name = names.file_name(self._prefix, epoch=epoch, step_in_epoch=step_in_epoch)

        def manifest_of(digest: str, file_bytes: int) -> Manifest:
            return Manifest(
                format=FORMAT,
                job=session.job,
                run=session.run,
                rank=session.rank,
                world_size=session.world_size,
                incarnation=session.incarnation,
                generation=session.generation,
                step=step,
                epoch=epoch,
                step_in_epoch=step_in_epoch,
                file=name,
                digest=digest,
                file_bytes=file_bytes,
                versions=session.state.versions() if session.state is not None else {},
                integrated=self._config.integrated_save,
            )

        self._known[step] = ""
        try:
            manifest, path = publish(self._directory, name, state.write, manifest_of)
        except CheckpointWriteError as error:
            _logger.warning("event=checkpoint_not_saved step=%d %s", step, error)
            del self._known[step]
            return
        self._known[step] = manifest.digest
        session.checkpoint_published(_held(manifest, path))
        self._retain(session)

    def _retain(self, session: Session) -> None:
        """Let older files go by the rule. What all ranks hold newest, and anything newer, stays whatever the rule says."""
        kept = {held.step: held for held in self._scan(session)}
        times = {step: Path(held.path).stat().st_mtime for step, held in kept.items()}
        for step in removable(
            [Kept(step, times[step]) for step in sorted(kept)],
            committed_step=session.committed_step,
            keep_checkpoint_max=self._config.keep_checkpoint_max,
            keep_checkpoint_per_n_minutes=self._config.keep_checkpoint_per_n_minutes,
        ):
            path = Path(kept[step].path)
            for file in (path, names.manifest_path(path)):  # a manifest that is left says whose file it was
                with contextlib.suppress(OSError):
                    file.unlink()

    def _scan(self, session: Session) -> tuple[HeldCheckpoint, ...]:
        return catalogue.scan(
            self._directory, self._prefix, job=session.job, run=session.run, rank=session.rank
        )

    def _rescan(self, session: Session) -> None:
        """Something changed in the directory: a file that came back (moved in by hand) counts, like one of our own."""
        for held in self._scan(session):
            known = self._known.get(held.step)
            if known not in ("", held.digest):
                self._known[held.step] = held.digest
                _logger.info("event=checkpoint_found step=%d path=%s", held.step, held.path)
                session.checkpoint_published(held)

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _close(self) -> None:
        self._join()
        if self._watch is not None:
            self._watch.stop()
            self._watch = None


def _held(manifest: Manifest, path: Path) -> HeldCheckpoint:
    return HeldCheckpoint(
        run=RunId(manifest.run),
        generation=Generation(manifest.generation),
        step=manifest.step,
        epoch=manifest.epoch,
        step_in_epoch=manifest.step_in_epoch,
        path=str(path),
        digest=manifest.digest,
        file_bytes=manifest.file_bytes,
    )
