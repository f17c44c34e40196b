"""Every error of the engine: a stable code, an exit code, a sentence that names field, value, rule and next step.

RecoveryError
  SettingError            SETTING_MISSING  SETTING_TYPE  SETTING_RANGE  SETTING_CONFLICT
  SecureChannelError      TLS cannot be had: each family shares one exit code
    ChannelSettingError     CONFIG_*
    ChannelFileError        FILE_*  PASSWORD_FILE  P12_*  CA_*  TLS_CRL_UNREADABLE  TLS_CRL_FOREIGN_CONTENT
    CertificateError        TLS_*
  RecoveryPathError       RECOVERY_PATH
  StoreError              STORE_*
  CheckpointError         CHECKPOINT_*  SAVES_FAILED
  RegistrationError       NODE_ALIVE  REJOIN_WINDOW  FENCED  UNKNOWN_TOKEN  WORLD_FULL  NODE_ID_INVALID  ID_CERT_MISMATCH  ROLE_CERT_MISMATCH  NOT_LET_IN  JOB_MISMATCH  PROTOCOL_VERSION
  PortInUseError          PORT_IN_USE
  HostUnusableError       HOST_UNUSABLE
  SchedulerUnreachableError  SCHEDULER_UNREACHABLE
  ProtocolError           PROTOCOL_ERROR
  JobFailedError          JOB_FAILED  NO_COMMON_CHECKPOINT  WAIT_TIMEOUT
  ProcessHungError        PROCESS_HUNG
  ProcessNotReplacedError PROCESS_NOT_REPLACED
  WorkerBrokenError       WORKER_BROKEN
  LaunchFailedError       LAUNCH_FAILED
  ExitBeforeEndError      EXIT_BEFORE_END
  UsageError              USAGE: wrong use of the Python face

The sentence is a template of the class; its parts stay as attributes (`error.parts["value"]`). Nobody parses texts.
A class whose template is its reason alone is not always raised: the two machines end a process by its code, and `exit_code_of` finds it.

May import: nothing of this package. Start reading at base.py; settings.py, tls.py, tls_certificates.py, storage.py and cluster.py hold the classes by subject.
"""

from __future__ import annotations

from collections.abc import Iterator

from recovery.errors.base import (
    Cause,
    GenerationInterrupted,
    InvariantError,
    RecoveryError,
)
from recovery.errors.cluster import (
    CertificateMismatchError,
    ExitBeforeEndError,
    FencedError,
    HostUnusableError,
    IdCertificateMismatchError,
    JobFailedError,
    JobMismatchError,
    LaunchFailedError,
    NoCommonCheckpointError,
    NodeAliveError,
    NodeIdInvalidError,
    NotHandedOverError,
    NotLetInError,
    PortInUseError,
    ProcessHungError,
    ProcessNotReplacedError,
    ProtocolError,
    ProtocolVersionError,
    RegistrationError,
    RejoinWindowError,
    RoleCertificateMismatchError,
    SchedulerUnreachableError,
    UnknownTokenError,
    WaitTimeoutError,
    WorkerBrokenError,
    WorldFullError,
)
from recovery.errors.settings import (
    SettingConflictError,
    SettingError,
    SettingMissingError,
    SettingRangeError,
    SettingTypeError,
    UsageError,
)
from recovery.errors.storage import (
    CheckpointDigestError,
    CheckpointError,
    CheckpointManifestError,
    CheckpointMissingError,
    CheckpointNotSharedError,
    CheckpointStateError,
    CheckpointWriteError,
    RecoveryPathError,
    SavesFailedError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreGoneError,
    StoreLockedError,
    StoreLostError,
    StoreNotOursError,
    StoreRowsMissingError,
    StoreVersionError,
    StoreWalMissingError,
    StoreWriteError,
)
from recovery.errors.tls import (
    CaFileError,
    CaHasPrivateKeyError,
    CaNotCaError,
    ChannelFileError,
    ChannelSettingError,
    ConfigCipherError,
    ConfigCipherWeakError,
    ConfigHostEmptyError,
    ConfigJsonError,
    ConfigRangeError,
    ConfigTlsIncompleteError,
    CrlForeignContentError,
    CrlUnreadableError,
    FileMissingError,
    FileNotRegularError,
    FileOwnerError,
    FilePermissionsError,
    FileSymlinkError,
    FileTooBigError,
    P12ExtraLeafError,
    P12FormatError,
    P12KeyMismatchError,
    P12NoCertificateError,
    P12NoKeyError,
    P12PasswordError,
    P12PasswordMissingError,
    P12UnencryptedError,
    PasswordFileError,
    SecureChannelError,
)
from recovery.errors.tls_certificates import (
    AuthorityExpiredError,
    CertificateError,
    CertificateExpiredError,
    CertificateNotYetValidError,
    CertificateRevokedError,
    CrlExpiredError,
    CrlMissingIssuerError,
    CrlNoSignRightError,
    CrlNotYetValidError,
    CrlSignatureError,
    IdentityError,
    KeyUsageError,
    LeafIsAuthorityError,
    NoSanError,
    UnknownAuthorityError,
    WeakKeyError,
    WeakSignatureError,
)

__all__ = (
    "AuthorityExpiredError",
    "CaFileError",
    "CaHasPrivateKeyError",
    "CaNotCaError",
    "Cause",
    "CertificateError",
    "CertificateExpiredError",
    "CertificateMismatchError",
    "CertificateNotYetValidError",
    "CertificateRevokedError",
    "ChannelFileError",
    "ChannelSettingError",
    "CheckpointDigestError",
    "CheckpointError",
    "CheckpointManifestError",
    "CheckpointMissingError",
    "CheckpointNotSharedError",
    "CheckpointStateError",
    "CheckpointWriteError",
    "ConfigCipherError",
    "ConfigCipherWeakError",
    "ConfigHostEmptyError",
    "ConfigJsonError",
    "ConfigRangeError",
    "ConfigTlsIncompleteError",
    "CrlExpiredError",
    "CrlForeignContentError",
    "CrlMissingIssuerError",
    "CrlNoSignRightError",
    "CrlNotYetValidError",
    "CrlSignatureError",
    "CrlUnreadableError",
    "ExitBeforeEndError",
    "FencedError",
    "FileMissingError",
    "FileNotRegularError",
    "FileOwnerError",
    "FilePermissionsError",
    "FileSymlinkError",
    "FileTooBigError",
    "GenerationInterrupted",
    "HostUnusableError",
    "IdCertificateMismatchError",
    "IdentityError",
    "InvariantError",
    "JobFailedError",
    "JobMismatchError",
    "KeyUsageError",
    "LaunchFailedError",
    "LeafIsAuthorityError",
    "NoCommonCheckpointError",
    "NoSanError",
    "NodeAliveError",
    "NodeIdInvalidError",
    "NotHandedOverError",
    "NotLetInError",
    "P12ExtraLeafError",
    "P12FormatError",
    "P12KeyMismatchError",
    "P12NoCertificateError",
    "P12NoKeyError",
    "P12PasswordError",
    "P12PasswordMissingError",
    "P12UnencryptedError",
    "PasswordFileError",
    "PortInUseError",
    "ProcessHungError",
    "ProcessNotReplacedError",
    "ProtocolError",
    "ProtocolVersionError",
    "RecoveryError",
    "RecoveryPathError",
    "RegistrationError",
    "RejoinWindowError",
    "RoleCertificateMismatchError",
    "SavesFailedError",
    "SchedulerUnreachableError",
    "SecureChannelError",
    "SettingConflictError",
    "SettingError",
    "SettingMissingError",
    "SettingRangeError",
    "SettingTypeError",
    "StoreCorruptError",
    "StoreError",
    "StoreFullError",
    "StoreGoneError",
    "StoreLockedError",
    "StoreLostError",
    "StoreNotOursError",
    "StoreRowsMissingError",
    "StoreVersionError",
    "StoreWalMissingError",
    "StoreWriteError",
    "UnknownAuthorityError",
    "UnknownTokenError",
    "UsageError",
    "WaitTimeoutError",
    "WeakKeyError",
    "WeakSignatureError",
    "WorkerBrokenError",
    "WorldFullError",
    "cause_of",
    "exit_code_of",
    "job_failure",
    "kinds",
)


def job_failure(code: str, reason: str) -> JobFailedError:
    """The error of a job that ended without success.

    Args:
        code: JOB_FAILED, NO_COMMON_CHECKPOINT or WAIT_TIMEOUT.
        reason: the sentence of the first failure.
    """
    kinds = {kind.code: kind for kind in (JobFailedError, NoCommonCheckpointError, WaitTimeoutError)}
    return kinds[code](reason=reason)


def exit_code_of(code: str) -> int:
    """The exit code of the error with this code; 1 for one that has no class (the user's own exception)."""
    return next((kind.exit_code for kind in kinds() if kind.code == code), 1)


def cause_of(exit_code: int) -> Cause | None:
    """What this exit code means for the next start of the same command; None: it is no code of ours (a user's own exception, a signal)."""
    named = (kind for kind in kinds() if kind.exit_code != RecoveryError.exit_code)
    return next((kind.cause for kind in named if kind.exit_code == exit_code), None)


def kinds() -> Iterator[type[RecoveryError]]:
    """Every kind of error, the abstract ones too."""
    pending: list[type[RecoveryError]] = [RecoveryError]
    while pending:
        kind = pending.pop()
        yield kind
        pending += kind.__subclasses__()
