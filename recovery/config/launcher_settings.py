"""The rows of the table of settings that `recovery msrun` alone acts on."""

from __future__ import annotations

from recovery.config.setting import Setting, SettingKind

_YEAR_S = 31_536_000

OF_LAUNCHERS = (
    Setting(
        name="MS_TAKEOVER_AFTER",
        kind=SettingKind.SECONDS,
        meaning="After how long the launcher of a host that is well starts a lost rank beside its own, where no other process has taken it. Read by recovery msrun. Negative: never.",
        rule="must be a whole number of seconds from 1 to 31536000, or a negative one for never",
        example="60",
        default="-1",
        low=1,
        high=_YEAR_S,
        negative_is_for_ever=True,
    ),
    Setting(
        name="MS_STOP_GRACE",
        kind=SettingKind.SECONDS,
        meaning="How long the processes of a job that is asked to stop (Ctrl-C, SIGTERM, SIGHUP, `recovery stop`) may take, the save of a last step included, before they are killed. Read by recovery msrun.",
        rule="must be a whole number of seconds from 0 to 86400",
        example="120",
        default="30",
        low=0,
        high=86_400,
    ),
)
