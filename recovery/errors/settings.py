"""Wrong variables, and wrong use of the Python face."""

from __future__ import annotations

from recovery.errors.base import Cause, RecoveryError, Row


class SettingError(RecoveryError):
    """A variable of the environment, or a flag, is wrong."""

    rows = (
        Row("SETTING_MISSING", 20, Cause.PERMANENT,
            "{field} is {state}: {rule}. {next_step}",
            "A required variable is unset or empty."),
        Row("SETTING_TYPE", 21, Cause.PERMANENT,
            "{field}={value!r}: {rule}. {next_step}",
            "A variable is not of its type."),
        Row("SETTING_RANGE", 22, Cause.PERMANENT,
            "{field}={value!r}: {rule}. {next_step}",
            "A variable is outside its range or set of values."),
        Row("SETTING_CONFLICT", 23, Cause.PERMANENT,
            "{field}={value!r}: {rule}. {next_step}",
            "Two settings exclude each other."),
    )  # fmt: skip


class UsageError(RecoveryError):
    """The Python face was used in a way that cannot work."""

    rows = (
        Row("USAGE", 64, Cause.PERMANENT,
            "{field}: {reason}. {next_step}"),
    )  # fmt: skip
