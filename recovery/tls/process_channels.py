"""The channels of this process: from the environment, or from what the script has given to init or set_ps_context, which wins."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from typing_extensions import override

from recovery.config import SecureChannel
from recovery.errors import ChannelSettingError, SettingError, UsageError
from recovery.tls.checked_files import PASSWORD_BYTES_MAX, read_password
from recovery.tls.side import Side

if TYPE_CHECKING:
    from recovery.tls.channel import Channel

_logger = logging.getLogger("recovery.tls")
_NOT_SHOWN = "(not shown)"
_MUST_BE = {"enable_ssl": "True or False", "config_file_path": "the path of config.json"}


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """What a script has given. None: it did not. Its text shows no password."""

    enable_ssl: bool | None = None
    config_file_path: Path | None = None
    client_password: bytes | None = None
    server_password: bytes | None = None

    @override
    def __repr__(self) -> str:
        return f"Arguments(enable_ssl={self.enable_ssl}, config_file_path={self.config_file_path})"


_given = Arguments()


def give(
    *,
    enable_ssl: object = None,
    config_file_path: object = None,
    client_password: object = None,
    server_password: object = None,
) -> None:
    """Keep what a script says, for the channels that are made after it. None leaves what was said before.

    Raises:
        SettingError: a value is not of its type; a password is not shown.
    """
    global _given  # noqa: PLW0603 - a process has one channel
    if enable_ssl is not None and not isinstance(enable_ssl, bool):
        raise _of_wrong_type(repr(enable_ssl)[:80], "enable_ssl")
    if config_file_path is not None and not isinstance(config_file_path, (str, Path)):
        raise _of_wrong_type(repr(config_file_path)[:80], "config_file_path")
    changes = {
        "enable_ssl": enable_ssl,
        "config_file_path": Path(config_file_path).absolute() if config_file_path else None,
        "client_password": _password("client_password", client_password),
        "server_password": _password("server_password", server_password),
    }
    _given = msgspec.structs.replace(
        _given, **{name: value for name, value in changes.items() if value is not None}
    )


def is_on(settings: SecureChannel) -> bool:
    """Whether this process speaks TLS."""
    return settings.enabled if _given.enable_ssl is None else _given.enable_ssl


def channel_of(settings: SecureChannel, side: Side) -> Channel | None:
    """Make the channel of one side; None: TLS is off.

    Raises:
        SecureChannelError: TLS is on, and something of its material is wrong.
    """
    if not is_on(settings):
        return None
    config_file = _config_file(settings)
    # 50 ms, which a process without TLS need not spend.
    from recovery.tls.channel import Channel  # noqa: PLC0415 - as above

    channel = Channel(config_file, side, _password_of(settings, side), _password_file_of(settings, side)[0])
    for text in channel.material.files.warnings:
        _logger.warning("event=tls_setting_ignored %s", text)
    return channel


def arguments_of(settings: SecureChannel) -> dict[str, str | bool | None]:
    """Where TLS is on, give what a framework takes for connections of its own, by the names of the seeds; None: nobody has said it.

    Raises:
        SecureChannelError: no config.json is named, or a password's file is wrong.
    """
    passwords = {side: _password_of(settings, side) for side in Side}
    return {
        "enable_ssl": True,
        "config_file_path": str(_config_file(settings)),
        **{
            f"{side.value}_password": None if password is None else password.decode()
            for side, password in passwords.items()
        },
    }


def variables_of(settings: SecureChannel) -> dict[str, str]:
    """Give the variables with which a scheduler that this process starts speaks as this process does.

    Raises:
        UsageError: the script has given the scheduler's password, which goes into no variable.
    """
    if not is_on(settings):
        return {"MS_ENABLE_SSL": "0"} if settings.enabled else {}
    if settings.server_password_file is None and _given.server_password is not None:
        raise UsageError(
            field="server_password",
            reason="is known to this process only, and it starts the scheduler as another one",
            next_step="Write it into a file of mode 0600 and set MS_SERVER_PASSWORD_FILE, or start `recovery scheduler` yourself.",
        )
    config_file = _given.config_file_path
    return {"MS_ENABLE_SSL": "1"} | ({"MS_CONFIG_FILE_PATH": str(config_file)} if config_file else {})


def _config_file(settings: SecureChannel) -> Path:
    config_file = _given.config_file_path or settings.config_file
    if config_file is None:
        raise ChannelSettingError(
            "CONFIG_TLS_INCOMPLETE",
            field="MS_CONFIG_FILE_PATH (config_file_path)",
            state="not set",
            rule="it names certificates and keys",
            next_step="Set it to a config.json; `recovery certs init DIR` makes one with everything in it.",
        )
    return config_file


def _password_of(settings: SecureChannel, side: Side) -> bytes | None:
    file, field = _password_file_of(settings, side)
    return _given_password(side) if file is None else read_password(file, field)


def _password_file_of(settings: SecureChannel, side: Side) -> tuple[Path | None, str]:
    """Where a password is read from, and which variable says so; None: nowhere, or the script has given it."""
    is_server, given = side is Side.SERVER, _given_password(side)
    file = settings.server_password_file if is_server else settings.client_password_file
    return (file if given is None else None), f"MS_{side.value.upper()}_PASSWORD_FILE"


def _given_password(side: Side) -> bytes | None:
    return _given.server_password if side is Side.SERVER else _given.client_password


def _password(name: str, value: object) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise _of_wrong_type(_NOT_SHOWN, name)
    data = value.encode()
    if len(data) > PASSWORD_BYTES_MAX:
        raise _of_wrong_type(_NOT_SHOWN, name)
    return data


def _of_wrong_type(shown: str, name: str) -> SettingError:
    rule = _MUST_BE.get(name, f"text of at most {PASSWORD_BYTES_MAX} bytes")
    return SettingError(
        "SETTING_TYPE",
        field=name,
        value=shown,
        rule=f"must be {rule}",
        next_step="Correct it where init or set_ps_context is called.",
    )
