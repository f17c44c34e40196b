"""The rows of the table of settings that are about checkpoints in memory."""

from __future__ import annotations

from recovery.config.setting import Setting, SettingKind

_STEPS_MOST, _BYTES_MOST = 10**9, 10**12 - 1

MEMORY_TIER = (
    Setting(
        name="MS_MEMORY_CHECKPOINT_STEPS",
        kind=SettingKind.INTEGER,
        meaning="Global steps between two checkpoints in memory (tmpfs), beside those that go to the disk; they survive a process and not its host. 0: none. The same in every process. Needs MS_ENABLE_RECOVERY=1, PyTorch and a ModelCheckpoint.",
        rule="must be a whole number from 0 to 1000000000",
        example="10",
        default="0",
        low=0,
        high=_STEPS_MOST,
    ),
    Setting(
        name="MS_MEMORY_CHECKPOINT_PATH",
        kind=SettingKind.PATH,
        meaning="The tmpfs on which checkpoints in memory lie, in a directory for each job. Unset: /dev/shm.",
        rule="must be the path of a directory, in printable characters, without spaces at its ends",
        example="/dev/shm",  # noqa: S108 - each user's directory there is checked to be the user's own
    ),
    Setting(
        name="MS_MEMORY_CHECKPOINT_BYTES",
        kind=SettingKind.INTEGER,
        meaning="Bytes that one rank's checkpoints in memory may take together. There are two, and three for a moment where ranks are far apart. What does not fit is not saved there. 0: a quarter of what is free, shared by the ranks of the host.",
        rule="must be a whole number from 0 to 999999999999",
        example="0",
        default="0",
        low=0,
        high=_BYTES_MOST,
    ),
)
