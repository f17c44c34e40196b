"""With what a launcher, or a command of a person, proves to the scheduler that it belongs to the job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from recovery.config.reader import Reader
from recovery.config.secret import Secret
from recovery.core.principals import PrincipalKind
from recovery.store import job_token_file
from recovery.transport.job_token import Caller, JobToken

_TOKEN, _PATH = "MS_JOB_TOKEN", "MS_RECOVERY_PATH"


def of_launcher(environment: Mapping[str, str], address: str) -> Caller:
    """What the launcher of a host says. It may be the first process of the job: then the token is made here.

    Raises:
        SettingError: MS_JOB_TOKEN or MS_RECOVERY_PATH is wrong.
        RecoveryPathError: the token's file cannot be read or made.
    """
    recovers = environment.get("MS_ENABLE_RECOVERY") == "1"
    given, path = _given(environment), _path(environment) if recovers else None
    token = JobToken.of(job_token_file.token_of(given, path))
    return Caller(PrincipalKind.LAUNCHER, address, token, job_token_file.source_of(given, path))


def of_viewer(environment: Mapping[str, str], recovery_path: Path | None = None) -> Caller:
    """What a command says. It makes no token: where there is none it asks without.

    Args:
        environment: of the command.
        recovery_path: of the job; None: MS_RECOVERY_PATH, if that is set.

    Raises:
        SettingError: MS_JOB_TOKEN or MS_RECOVERY_PATH is wrong.
        RecoveryPathError: the token's file is not one that only this user can read.
    """
    given, path = _given(environment), recovery_path or _path(environment)
    source = job_token_file.source_of(given, path)
    found = job_token_file.token_of(given, None) if source is None else source()
    return Caller(PrincipalKind.VIEWER, "", JobToken.of(found), source)


def job_token(environment: Mapping[str, str]) -> dict[str, str]:
    """Give the variable by which processes of other hosts prove that they belong to the job; none where the network is trusted.

    Raises:
        SettingError, RecoveryPathError: as of `of_launcher`.
    """
    token = job_token_file.token_of(_given(environment), _path(environment))
    return {} if token is None else {_TOKEN: token}


def _given(environment: Mapping[str, str]) -> Secret | None:
    return Reader.of_one(_TOKEN, environment).secret(_TOKEN)


def _path(environment: Mapping[str, str]) -> Path | None:
    return Reader.of_one(_PATH, environment).path(_PATH, required=False)
