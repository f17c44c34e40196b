"""The seeds' config.json: which files the secure channel is made of, and its few rules.

Paths are resolved against the working directory, as MindSpore does: one file means the same to both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from recovery.errors import ChannelSettingError
from recovery.tls import ciphers
from recovery.tls.checked_files import read_public
from recovery.tls.host_names import is_host

_BYTES_MAX = 64 * 1024
_EXPIRE_DAYS = 90
_EXPIRE_DAYS_MAX = 3_650
_SHOWN_CHARACTERS = 60
_TEXTS = (
    "server_cert_path",
    "client_cert_path",
    "ca_cert_path",
    "crl_path",
    "cipher_list",
    "expected_hostname",
)
_DAYS = "cert_expire_warning_time_in_day"
_OF_OTHERS = (
    "connection_num",
    "recovery",
    "cert_check_interval_in_hour",
    "scheduler_manage_port",
)
"""Keys that MindSpore reads from the same file, and that have no effect here."""


class ChannelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What config.json says."""

    file: Path
    server_cert: Path | None
    """PKCS#12 of the listening side; None: not named."""
    client_cert: Path | None
    """PKCS#12 of the dialling side; None: not named."""
    ca_cert: Path
    crl: Path | None
    """None: revocation is not checked."""
    ciphers: tuple[str, ...]
    """Of TLS 1.2, each usable."""
    expire_warning_days: int
    expected_hostname: str
    """The name in the scheduler's certificate; empty: MS_SCHED_HOST."""
    warnings: tuple[str, ...]
    """What was ignored; the caller logs it."""

    def name_to_check(self, host: str) -> str:
        """The name that the scheduler's certificate must have where `host` is dialled.

        Raises:
            ChannelSettingError: there is none, so that any certificate would do.
        """
        name = self.expected_hostname or host
        if not name:
            raise ChannelSettingError("CONFIG_HOST_EMPTY", field="MS_SCHED_HOST")
        return name


def read_config_file(path: Path, directory: Path | None = None) -> ChannelFiles:
    """Read and check config.json.

    Args:
        path: of the file; a relative one is resolved against the working directory.
        directory: against which relative paths in it are resolved; None: the working directory.

    Raises:
        ChannelFileError: the file cannot be read, or others may change it.
        ChannelSettingError: it is no JSON object of known keys and types, or what a key says cannot be used.
    """
    path, directory = Path(path).absolute(), directory or Path.cwd()
    found = _parsed(path, read_public(path, "config_file_path", bytes_max=_BYTES_MAX))
    texts = {name: _text(path, found, name) for name in _TEXTS}
    chosen = ciphers.choose(texts["cipher_list"], str(path))
    if not texts["ca_cert_path"]:
        raise ChannelSettingError(
            "CONFIG_TLS_INCOMPLETE",
            field="ca_cert_path",
            state="empty" if "ca_cert_path" in found else "not set",
            rule="no peer can be checked without it",
            next_step=f"Name the authority's PEM file in {path}.",
        )
    name = texts["expected_hostname"]
    if name and not is_host(name):
        # Such as "." would leave the library to check another name, or none.
        raise _refused(path, f"expected_hostname={_shown(name)} is neither an IP address nor a host name")
    warnings = []
    if chosen.ignored:
        warnings.append(
            f"{path}: cipher_list: {len(chosen.ignored)} entries are not offered here and are ignored: {', '.join(chosen.ignored)}. "
            f"Used: {', '.join(chosen.names)}, and the suites of TLS 1.3."
        )
    without_effect = [name for name in _OF_OTHERS if name in found]
    if without_effect:
        warnings.append(f"{path}: {', '.join(without_effect)} has no effect here; MindSpore reads it")
    return ChannelFiles(
        file=path,
        server_cert=_path(directory, texts["server_cert_path"]),
        client_cert=_path(directory, texts["client_cert_path"]),
        ca_cert=directory / texts["ca_cert_path"],
        crl=_path(directory, texts["crl_path"]),
        ciphers=chosen.names,
        expire_warning_days=_days(path, found),
        expected_hostname=name,
        warnings=tuple(warnings),
    )


def _path(directory: Path, text: str) -> Path | None:
    return directory / text if text else None


def _parsed(path: Path, data: bytes) -> dict[str, Any]:
    """One JSON object of known keys, each once."""
    found = _decoded(path, data)
    if not isinstance(found, dict):
        raise _refused(path, f"it holds a {type(found).__name__}, not an object")
    unknown = next((name for name in found if name not in (*_TEXTS, _DAYS, *_OF_OTHERS)), None)
    if unknown is not None:
        raise _refused(path, f"the key {_shown(unknown)} is unknown")
    return found


def _decoded(path: Path, data: bytes) -> object:
    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise _refused(path, f"the key {_shown(twice)} stands there twice")
        return dict(pairs)

    def constant(text: str) -> NoReturn:
        raise _refused(path, f"{text} is no number of JSON")

    if not data.strip():
        raise _refused(path, "it is empty")
    try:
        return json.loads(data.decode(), object_pairs_hook=object_of, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise _refused(path, f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise _refused(path, f"byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise _refused(path, "it is nested too deeply") from None
    except ValueError as error:
        # An integer of more digits than Python converts.
        raise _refused(path, str(error)[:_SHOWN_CHARACTERS]) from None


def _refused(path: Path, reason: str) -> ChannelSettingError:
    return ChannelSettingError("CONFIG_JSON", file=str(path), reason=reason)


def _text(path: Path, found: dict[str, Any], name: str) -> str:
    value = found.get(name, "")
    if not isinstance(value, str):
        raise _refused(path, f"{name} must be text, not {_shown(value)}")
    if not value.isprintable() or value != value.strip():
        raise _refused(path, f"{name}={_shown(value)} holds control characters, or blanks at its ends")
    return value


def _days(path: Path, found: dict[str, Any]) -> int:
    value = found.get(_DAYS, _EXPIRE_DAYS)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _EXPIRE_DAYS_MAX:
        raise ChannelSettingError(
            "CONFIG_RANGE",
            file=str(path),
            field=_DAYS,
            value=_shown(value),
            rule=f"must be a whole number of days from 1 to {_EXPIRE_DAYS_MAX}",
            example=_EXPIRE_DAYS,
        )
    return value


def _shown(value: object) -> str:
    text = json.dumps(value, allow_nan=True)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
