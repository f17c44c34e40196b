"""Which layout a ModelCheckpoint saves in: as it was asked for, or as the state has it."""

from __future__ import annotations

import logging

from recovery.checkpoint.contribution import FileRole, Layout
from recovery.errors import SettingError, UsageError
from recovery.training.state import is_sharded

_logger = logging.getLogger("recovery.training")
_NAMES = ("rank", "sharded", "shared")


def check_name(layout: str | None) -> None:
    """Refuse what is no layout.

    Raises:
        SettingError: it is none of "rank", "sharded", "shared" and None.
    """
    if layout is not None and layout not in _NAMES:
        raise SettingError(
            "SETTING_RANGE",
            field="layout",
            value=layout,
            rule="must be 'rank' (each rank saves the whole state), 'sharded' (each its own shards), 'shared' (all together write one "
            "state into one directory) or None (as the state is)",
            next_step="Leave it out: the state itself tells.",
        )


def choose(layout: str | None, state: object, *, integrated: bool) -> Layout:
    """Settle the layout at the beginning of a generation; one line says it where the state alone has decided.

    Args:
        layout: as it was asked for; None: whatever fits the state.
        state: of the training.
        integrated: CheckpointConfig.integrated_save.

    Raises:
        UsageError: the layout that was asked for does not fit the state.
    """
    spread = is_sharded(state)
    if layout == "rank" and spread:
        raise _unfit(
            layout, "the state is spread over the ranks (it holds DTensors), so no rank has the whole of it"
        )
    if layout == "shared":
        if spread:
            raise _unfit(
                layout, "the state is spread over the ranks (it holds DTensors), so they have none in common"
            )
        return Layout.SHARED
    if layout == "sharded" and not spread:
        raise _unfit(layout, "the state is not spread over the ranks (it holds no DTensor)")
    if layout is None and spread:
        _logger.info(
            "event=layout_chosen layout=sharded the state holds DTensors: each rank saves its own shards, and all ranks' files together "
            "are a checkpoint"
        )
    return Layout.SHARDED if spread or not integrated else Layout.RANK


def role_in(layout: Layout) -> FileRole:
    """What the one file of a rank is called in its manifest."""
    return FileRole.STATE if layout is Layout.RANK else FileRole.SHARD


def _unfit(layout: str, reason: str) -> UsageError:
    return UsageError(
        field=f"ModelCheckpoint(layout={layout!r})",
        reason=reason,
        next_step="Leave layout out: the state itself tells.",
    )
