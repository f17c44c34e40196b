"""Wrong variables, and wrong use of the Python face."""

from __future__ import annotations

from recovery.errors.base import RecoveryError

# --- settings ----------------------------------------------------------------------------------------------------------


class SettingError(RecoveryError):
    """A variable of the environment is wrong."""


class SettingMissingError(SettingError):
    """A required variable is unset or empty."""

    code, exit_code = "SETTING_MISSING", 20
    template = "{field} is {state}: {rule}. {next_step}"


class SettingTypeError(SettingError):
    """A variable is not of its type."""

    code, exit_code = "SETTING_TYPE", 21
    template = "{field}={value!r}: {rule}. {next_step}"


class SettingRangeError(SettingError):
    """A variable is outside its range or set of values."""

    code, exit_code = "SETTING_RANGE", 22
    template = "{field}={value!r}: {rule}. {next_step}"


class SettingConflictError(SettingError):
    """Two settings exclude each other."""

    code, exit_code = "SETTING_CONFLICT", 23
    template = "{field}={value!r}: {rule}. {next_step}"


# --- usage -------------------------------------------------------------------------------------------------------------


class UsageError(RecoveryError):
    """The Python face was used in a way that cannot work."""

    code, exit_code = "USAGE", 64
    template = "{field}: {reason}. {next_step}"
