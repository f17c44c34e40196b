"""What a plan goes back to: verified, then loaded into a state, or offered where a framework loads its own folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from recovery.checkpoint import verify
from recovery.checkpoint.contribution import Layout, Manifest
from recovery.checkpoint.position import Position
from recovery.core.messages import Rollback
from recovery.core.worker import stimuli as s
from recovery.errors import (
    CheckpointError,
    CheckpointManifestError,
    CheckpointStateError,
    GenerationInterrupted,
)
from recovery.training import folder_load, shared_load
from recovery.training.state import RestorableState, SaysHowBuilt
from recovery.worker.service import WorkerService

_logger = logging.getLogger("recovery.training")


class PlannedCheckpoint:
    """This rank's contribution to the step that a plan names. Main thread."""

    def __init__(self, service: WorkerService, plan: Rollback, job: str) -> None:
        """Nothing is read before `load` or `folder`; the plan's step is not 0."""
        self._service, self._plan, self._job = service, plan, job
        self._path = Path(plan.path)
        self._is_folder = plan.path.endswith("/")
        self._is_offered = False
        self._position: Position | None = None
        """Of the folder that was offered."""

    def folder(self, versions: Mapping[str, str]) -> Path:
        """Verify the folder, once, and offer it. What of these `versions` differs from those it was saved with is named.

        Raises:
            GenerationInterrupted: it is not what it was saved as; another plan follows.
            CheckpointStateError: it is no folder.
        """
        if not self._is_folder:
            raise CheckpointStateError(
                field=str(self._path),
                reason="is no folder that a framework wrote",
                next_step="Leave it to session.steps, which loads what ModelCheckpoint has saved.",
            )
        if not self._is_offered:
            try:
                manifest = self._checked()
                folder_load.check_others(self._path, manifest)
            except CheckpointError as error:
                self._reject(str(error))
            self._name_differences(manifest.versions, versions)
            self._is_offered, self._position = True, manifest.position
            self._restored()
        return self._path

    def load(self, state: RestorableState) -> Position | None:
        """Verify it and load it into `state`. A folder is loaded by the caller that took it.

        Returns:
            Where it stands; None: it does not say.

        Raises:
            GenerationInterrupted: it is not what it was saved as; another plan follows.
            CheckpointStateError: it does not fit the state, or is a folder that nobody took.
        """
        if self._is_folder:
            if not self._is_offered:
                raise CheckpointStateError(
                    field=str(self._path),
                    reason="is a folder that a framework wrote, and nothing has loaded it",
                    next_step="Load what session.resume_from names before the steps.",
                )
            return self._position
        try:
            manifest = self._checked()
            parts = (
                shared_load.checked_parts(self._path, manifest) if manifest.layout is Layout.SHARED else ()
            )
        except CheckpointError as error:
            self._reject(str(error))
        self._name_differences(manifest.versions, state.versions())
        if isinstance(state, SaysHowBuilt):
            state.compare(manifest.versions)
        if parts:
            try:
                shared_load.load_shared(state, self._path, parts, manifest.replicated)
            except CheckpointManifestError as error:
                self._reject(str(error))
        else:
            state.read(self._path)
        self._restored()
        return manifest.position

    def _checked(self) -> Manifest:
        plan = self._plan
        return verify.check_wanted(
            self._path,
            verify.Wanted(
                job=self._job,
                run=int(plan.run),
                rank=int(plan.rank),
                world_size=plan.world_size,
                step=plan.step,
                digest=plan.digest,
            ),
        )

    def _name_differences(self, saved: Mapping[str, str], present: Mapping[str, str]) -> None:
        """This process may run where its predecessor did not: on another host, with other packages, with other threads."""
        differing = [
            f"{name} {present[name]}, {saved[name]} when it was saved"
            for name in sorted(saved.keys() & present.keys())
            if saved[name] != present[name]
        ]
        if differing:
            _logger.warning(
                "event=conditions_differ rank=%d step=%d %s: later steps may differ in their last bits from those of an undisturbed run",
                self._plan.rank,
                self._plan.step,
                "; ".join(differing),
            )

    def _restored(self) -> None:
        plan = self._plan
        _logger.info(
            "event=restored rank=%d generation=%d step=%d path=%s",
            plan.rank,
            plan.generation,
            plan.step,
            self._path,
        )

    def _reject(self, reason: str) -> NoReturn:
        reject(self._service, self._plan, self._plan.path, reason)


def for_manifest(state: RestorableState) -> dict[str, str]:
    """What a manifest says of a state beside its file."""
    return {**state.versions(), **(state.built() if isinstance(state, SaysHowBuilt) else {})}


def reject(service: WorkerService, plan: Rollback, path: str, reason: str) -> NoReturn:
    """Report that what a plan goes to is not usable, and wait for the next one, which goes to something older.

    Args:
        service: of this process.
        plan: this entry's.
        path: where that is, as the scheduler is to name it.
        reason: for people.

    Raises:
        GenerationInterrupted: always.
    """
    service.post(s.CheckpointRejected(service.new_request(), plan.generation, plan.step, path, reason))
    service.training_control.await_end(plan.generation)
    raise GenerationInterrupted(int(plan.generation), reason)
