"""What a launcher asks the stored state of its job: advice only, so that whatever cannot be read is unknown, and ends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from recovery.core.records import EventKind, JobRecord
from recovery.errors import RecoveryError
from recovery.launch import console
from recovery.launch.presence import Kind, look_at
from recovery.transport.client import warm_up

_STEPPED = {EventKind.FIRST_STEP_DONE, EventKind.CHECKPOINT_COMMITTED}


def load(environment: Mapping[str, str]) -> None:
    """Import what supervision will ask by, while the job begins: at a failure the package may be about to be replaced."""
    warm_up()
    if environment.get("MS_RECOVERY_PATH"):
        from recovery.store import reader  # noqa: PLC0415 - 0.2 s, while the template imports

        reader.compile_statements()


def stored_job(environment: Mapping[str, str]) -> JobRecord | None:
    """What the scheduler's store says of the job; None: it is not here, or cannot be read."""
    path = environment.get("MS_RECOVERY_PATH")
    try:
        from recovery.store.reader import read_job  # noqa: PLC0415 - see `load`

        return read_job(Path(path)) if path else None
    except (RecoveryError, OSError):
        return None
    except Exception as error:  # noqa: BLE001 - it is asked for advice
        console.say_unknown("whether the job has finished", error)
        return None


def has_stepped(environment: Mapping[str, str]) -> bool:
    """By the stored event log; a host that cannot read it cannot know and takes it for granted.

    A worker whose first step falls into an outage of the scheduler says it to nobody: then the first common checkpoint shows it.
    """
    path = Path(environment.get("MS_RECOVERY_PATH", ""))
    if not environment.get("MS_RECOVERY_PATH") or look_at(path).kind is not Kind.DIRECTORY:
        return True
    try:
        from recovery.store.reader import read_newest_events  # noqa: PLC0415 - see `load`

        return bool(read_newest_events(path, _STEPPED, 1))
    except (RecoveryError, OSError):
        return True
    except Exception as error:  # noqa: BLE001 - it is asked for advice
        console.say_unknown("whether the job has stepped", error)
        return True
