"""What this process runs, as the scheduler compares it over the hosts."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from recovery.config import Settings
from recovery.core.programs import Program

_WORDS_MAX, _LETTERS_MAX = 64, 200


def program(settings: Settings) -> Program:
    """Say it, of the script as its file is now."""
    script, *arguments = sys.argv or [""]
    try:
        digest = hashlib.sha256(Path(script).read_bytes()).hexdigest()
    except (OSError, ValueError):
        digest = ""
    words = [_bounded(argument) for argument in arguments]
    if len(words) > _WORDS_MAX:
        words[_WORDS_MAX - 1 :] = [_bounded("\0".join(words[_WORDS_MAX - 1 :]), letters_max=0)]
    rules = settings.rules
    return Program(
        script=_bounded(Path(script).name),
        digest=digest,
        arguments=tuple(words),
        settings=(
            f"MS_ROLLBACK={'live' if rules.live_rollback else 'checkpoint'}",
            f"MS_MEMORY_CHECKPOINT_STEPS={settings.memory.every_steps}",
            f"MS_CHECKPOINT_STORE={_bounded(settings.checkpoint_store)}",
        ),
    )


def _bounded(text: str, letters_max: int = _LETTERS_MAX) -> str:
    """What a message takes: UTF-8, and no more letters than that."""
    plain = text.encode(errors="backslashreplace").decode()
    digest = hashlib.sha256(plain.encode()).hexdigest()[:12]
    return plain if len(plain) <= letters_max else f"{plain[:letters_max]}...#{digest}"
