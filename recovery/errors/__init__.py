"""Every error of the engine: a stable code, an exit code, a sentence that names field, value, rule and next step.

An error is a row of a table. A class holds the rows that its callers treat alike; there is one where somebody catches it, or acts on
it in another way than on its neighbours:

RecoveryError
  SettingError            SETTING_*
  SecureChannelError      TLS cannot be had: the rows of each class share one exit code
    ChannelSettingError     CONFIG_*
    ChannelFileError        FILE_*  PASSWORD_FILE  P12_*  CA_*  TLS_CRL_UNREADABLE  TLS_CRL_FOREIGN_CONTENT
    CertificateError        TLS_*
  RecoveryPathError       RECOVERY_PATH
  StoreError              STORE_*
  CheckpointError         CHECKPOINT_*  CHECKPOINTS_UNKNOWN  SAVES_FAILED  UPLOAD_NOT_FINISHED
  RegistrationError       NODE_ALIVE  REJOIN_WINDOW  FENCED  UNKNOWN_TOKEN  WORLD_FULL  NODE_ID_INVALID  ID_CERT_MISMATCH  ROLE_CERT_MISMATCH  NOT_LET_IN  JOB_MISMATCH  PROTOCOL_VERSION
  ProcessError            PORT_IN_USE  HOST_UNUSABLE  SCHEDULER_UNREACHABLE  EXIT_BEFORE_END  NOT_HANDED_OVER  PROCESS_HUNG  PROCESS_NOT_REPLACED  WORKER_BROKEN  SCHEDULER_BROKEN  NO_THREAD
  ProtocolError           PROTOCOL_ERROR
  JobFailedError          JOB_FAILED  NO_COMMON_CHECKPOINT  WAIT_TIMEOUT
  LaunchFailedError       LAUNCH_FAILED
  UsageError              USAGE: wrong use of the Python face

`raise StoreError("STORE_CORRUPT", path=path, reason=reason)`: the parts fill the row's template and stay as attributes
(`error.parts["reason"]`). Nobody parses texts. A row whose template is its reason alone is not always raised: the two machines end a
process by its code, and `exit_code_of` finds it.

May import: nothing of this package. Start reading at base.py; settings.py, tls.py, storage.py and cluster.py hold the classes by subject.
"""

from __future__ import annotations

from collections.abc import Iterator

from recovery.errors.base import Cause as Cause
from recovery.errors.base import GenerationInterrupted as GenerationInterrupted
from recovery.errors.base import InvariantError as InvariantError
from recovery.errors.base import RecoveryError as RecoveryError
from recovery.errors.base import Row as Row
from recovery.errors.cluster import JobFailedError as JobFailedError
from recovery.errors.cluster import LaunchFailedError as LaunchFailedError
from recovery.errors.cluster import ProcessError as ProcessError
from recovery.errors.cluster import ProtocolError as ProtocolError
from recovery.errors.cluster import RegistrationError as RegistrationError
from recovery.errors.settings import SettingError as SettingError
from recovery.errors.settings import UsageError as UsageError
from recovery.errors.storage import CheckpointDigestError as CheckpointDigestError
from recovery.errors.storage import CheckpointError as CheckpointError
from recovery.errors.storage import CheckpointManifestError as CheckpointManifestError
from recovery.errors.storage import CheckpointStateError as CheckpointStateError
from recovery.errors.storage import CheckpointWriteError as CheckpointWriteError
from recovery.errors.storage import RecoveryPathError as RecoveryPathError
from recovery.errors.storage import StoreBusyError as StoreBusyError
from recovery.errors.storage import StoreError as StoreError
from recovery.errors.storage import StoreFullError as StoreFullError
from recovery.errors.storage import StoreLockedError as StoreLockedError
from recovery.errors.storage import StoreLostError as StoreLostError
from recovery.errors.storage import StoreVersionError as StoreVersionError
from recovery.errors.storage import StoreWaitError as StoreWaitError
from recovery.errors.tls import CertificateError as CertificateError
from recovery.errors.tls import ChannelFileError as ChannelFileError
from recovery.errors.tls import ChannelSettingError as ChannelSettingError
from recovery.errors.tls import SecureChannelError as SecureChannelError


def _rows(kind: type[RecoveryError]) -> Iterator[Row]:
    """Those of a class and of the classes below it."""
    if "rows" in kind.__dict__:
        for row in kind.rows:
            yield row._replace(meaning=row.meaning or (kind.__doc__ or "").partition("\n")[0])
    for below in kind.__subclasses__():
        yield from _rows(below)


ROWS = {row.code: row for row in _rows(RecoveryError)}
"""Every error by its code."""

_NO_CODE_OF_ITS_OWN = 1


def exit_code_of(code: str) -> int:
    """The exit code of the error with this code; 1 for one that is not in the table (the user's own exception)."""
    return ROWS[code].exit_code if code in ROWS else _NO_CODE_OF_ITS_OWN


def cause_of(exit_code: int) -> Cause | None:
    """What this exit code means for the next start of the same command; None: it is no code of ours (a user's own exception, a signal)."""
    named = (row for row in ROWS.values() if row.exit_code == exit_code != _NO_CODE_OF_ITS_OWN)
    return next((row.cause for row in named), None)
