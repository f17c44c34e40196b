"""What may be handed to `Session.steps`: LossMonitor and ModelCheckpoint, with MindSpore's names and rules."""

from __future__ import annotations

import logging
from pathlib import Path

from typing_extensions import override

from recovery import clock
from recovery.checkpoint import catalogue, names
from recovery.checkpoint.contribution import Layout, Manifest
from recovery.checkpoint.leftovers import remove_leftovers
from recovery.checkpoint.retention import Retention
from recovery.checkpoint.watch import DirectoryWatch
from recovery.training import capture, checkpoint_layout, earlier_jobs, shared_layout
from recovery.training.checkpoint_config import CheckpointConfig, rule_of
from recovery.training.disk_schedule import DiskSchedule
from recovery.training.memory_checkpoints import MemoryCheckpoints
from recovery.training.pending_checkpoint import PendingCheckpoint
from recovery.training.saver import Saver, Target
from recovery.training.session import Callback, Session
from recovery.training.shared_layout import SharedLayout

_logger = logging.getLogger("recovery.training")


class LossMonitor(Callback):
    """Prints `epoch: E step: S, loss is L (global step N)`, S counted in the epoch, 1-based, L with five digits.

    Needs `session.report(loss=...)` in the loop.

    MindSpore's documents show this format and one with a comma after the epoch ("epoch: E, step: S, loss is L", the
    functional loop's); this is the one of MindSpore's callback.
    """

    changes_state = False

    def __init__(self, per_print_times: int = 1) -> None:
        """Choose how often to print.

        Args:
            per_print_times: steps between two lines, counted over all epochs; 0: never.
        """
        self._per_print_times = per_print_times

    @override
    def on_step_end(self, session: Session) -> None:
        """Print when it is time."""
        is_due = self._per_print_times and session.step % self._per_print_times == 0
        if is_due and (loss := session.read_loss()) is not None:
            print(  # noqa: T201 - the callback's product
                f"epoch: {session.epoch} step: {session.step_in_epoch}, loss is {loss:.5g} "
                f"(global step {session.step})",
                flush=True,
            )


class ModelCheckpoint(Callback):
    """Saves the training state at each multiple of so many steps, keeps as many as the configuration says, and never too few to recover.

    Files are `<prefix>-<epoch>_<step in epoch>.ckpt` with a manifest beside each. Every rank saves into a directory of its
    own, or all into one directory, where what they have in common is written once (`layout="shared"`). A save that fails costs
    nothing but itself: training goes on and older files stay. With MS_MEMORY_CHECKPOINT_STEPS steps between two saves are saved in
    memory too.
    """

    changes_state = False
    saves_state = True

    def __init__(
        self,
        prefix: str = "CKP",
        directory: str | Path | None = None,
        config: CheckpointConfig | None = None,
        *,
        layout: str | None = None,
    ) -> None:
        """Choose name, place and rule.

        Args:
            prefix: of the file names; `_1`, `_2`, ... is appended where another run has left files of that prefix.
            directory: one per rank, made if absent; None: the current directory. With layout "shared" one that all ranks see.
            config: when to save and what to keep; None: `CheckpointConfig()`, which saves every step and keeps five.
            layout: "rank": each rank's file holds the whole state; "sharded": its own shards of a state that is spread over the ranks
                (FSDP2, HSDP, tensor parallel); "shared": parameters, optimizers and schedules are written once, spread over the ranks, which all have the
                same, and needs recovery.torch.TrainState; None: "sharded" or "rank", whichever the state is.

        Raises:
            SettingError: there is no such layout.
        """
        checkpoint_layout.check_name(layout)
        self._wanted_layout, self._layout = layout, Layout.RANK
        self._shared: SharedLayout | None = None
        self._wanted_prefix, self._prefix = prefix, prefix
        # As it was given: a link may be turned to another disk between two starts, and what lies behind it is still looked for by its name.
        self._directory = Path(directory or ".").absolute()
        self._config = config or CheckpointConfig()
        self._schedule = DiskSchedule(
            every_steps=self._config.save_checkpoint_steps, every_seconds=self._config.save_checkpoint_seconds
        )
        self._newest_step = 0
        """The newest step on the disk: what was saved last, in its turn or out of it."""
        self._known: dict[int, str] = {}
        """Digest by step of what was reported; empty while our own save of that step is under way."""
        self._saver = Saver(
            "recovery-save", published=self._published, failed=self._not_saved, is_urgent=False
        )
        self._watch: DirectoryWatch | None = None
        self._retention: Retention | None = None
        self._memory = MemoryCheckpoints()

    @override
    def on_begin(self, session: Session) -> None:
        """Look at the directory, never touching what another run left there.

        Raises:
            SettingError: recovery is on, and the configuration keeps too few or never saves.
            UsageError: the prefix cannot begin a file name, or the layout does not fit the state.
            CheckpointManifestError: the directory cannot be listed.
            CheckpointError: training begins, and the directory holds checkpoints of a job that nobody here knows.
            OSError: the directory cannot be made.
        """
        self._layout = checkpoint_layout.choose(
            self._wanted_layout, session.state, integrated=self._config.integrated_save
        )
        if session.recovery_enabled:
            self._config.check_for_recovery()
        self._directory.mkdir(parents=True, exist_ok=True)
        earlier_jobs.check(session, self._directory, self._wanted_prefix)
        if self._layout is Layout.SHARED:
            self._shared = SharedLayout(session, self._directory, self._wanted_prefix)
            self._prefix = self._shared.prefix
        else:
            self._prefix = catalogue.free_prefix(
                self._directory, self._wanted_prefix, job=session.job, run=session.run
            )
        if session.recovery_enabled:
            remove_leftovers(self._directory, self._prefix)
        session.checkpoint_directory(self._directory, self._prefix)
        if session.rank == 0:
            # All ranks have the same rule.
            _logger.info("event=saves_planned %s, in %s", self._config.sentence, self._directory)
        commits = session.disk_commits
        self._schedule.begin(durable_step=commits.step, since_commit_ms=commits.since_ms)
        self._newest_step = commits.step
        session.save_when_asked(lambda: self._save_out_of_turn(session))
        self._known = {held.step: held.digest for held in self._look(session).held}
        self._retention = Retention(
            lambda: self._look(session), rule_of(self._config), is_pinned=lambda path: False
        )
        self._memory.begin(session, self._prefix, self._layout)
        self._watch = DirectoryWatch(self._directory, lambda: self._rescan(session))
        self._watch.start()
        session.before_done(self._join)
        session.on_generation_end(self._close)

    @override
    def on_step_end(self, session: Session) -> None:
        """Save when it is time."""
        if self._shared is not None:
            self._shared.after_step()
        if self._schedule.takes_turn(
            session.step, now_ms=clock.monotonic_ms(), committed_ms=session.disk_commits.heard_ms
        ):
            self._save(session)
        elif self._memory.is_due(session):
            self._memory.save(session, behind_steps=self._config.async_save)

    @override
    def on_end(self, session: Session) -> None:
        """Save the last step, as MindSpore does, and wait for a save under way."""
        if session.step != self._newest_step:
            self._save(session)
        self._join()
        if self._shared is not None:
            self._shared.after_step()

    def _save(self, session: Session) -> None:
        """Copy the state while no step changes it; what writes the copy and makes it durable happens behind the next steps.

        One save at a time: a disk that cannot keep up slows training instead of filling memory.
        """
        state = session.state
        assert state is not None, "callbacks run inside steps()"
        self._join()
        pieces = self._shared.take() if self._shared is not None else None
        replicated = pieces.replicated if pieces is not None else ""
        save = PendingCheckpoint(session, self._name(session), layout=self._layout, replicated=replicated)
        save.note_replica()
        self._newest_step = save.step
        self._known[save.step] = ""
        files = shared_layout.contents(save.name, pieces) if pieces is not None else []
        target = Target(session, self._directory)
        self._saver.save(target, save, behind_steps=self._config.async_save, files=files)

    def _save_out_of_turn(self, session: Session) -> None:
        """Save where a rank is handed over. The schedule stays: a rank that was asked too late has not saved here."""
        if session.step != self._newest_step:
            self._save(session)

    def _name(self, session: Session) -> str:
        return names.file_name(self._prefix, epoch=session.epoch, step_in_epoch=session.step_in_epoch)

    def _published(self, session: Session, save: PendingCheckpoint, manifest: Manifest, path: Path) -> None:
        if self._shared is not None and not self._shared.compare(manifest, path):
            return
        self._known[save.step] = manifest.digest
        save.published(catalogue.held_of(manifest, path))
        assert self._retention is not None, "on_begin has looked at the directory"
        self._retention.apply(
            previous_durable_step=session.previous_durable_step, pinned=session.pinned_steps
        )

    def _not_saved(self, save: PendingCheckpoint, reason: str) -> None:
        del self._known[save.step]
        save.failed(reason)

    def _look(self, session: Session) -> catalogue.Listing:
        return catalogue.list_directory(
            self._directory, self._prefix, job=session.job, run=session.run, rank=session.rank
        )

    def _rescan(self, session: Session) -> None:
        """Something changed in the directory: a file that came back (moved in by hand) counts, like one of our own."""
        for held in self._look(session).held:
            known = self._known.get(held.step)
            if known not in ("", held.digest):
                self._known[held.step] = held.digest
                _logger.info("event=checkpoint_found step=%d path=%s", held.step, held.path)
                session.checkpoint_published(held)

    def _join(self) -> None:
        if self._saver.is_under_way:
            capture.of_this_process().skip_delay()
            self._saver.join()

    def _close(self) -> None:
        self._join()
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
