"""Every error class that names a code of its own."""

from __future__ import annotations

from recovery import errors


def error_classes() -> list[type[errors.RecoveryError]]:
    """In the order of their codes."""
    found, waiting = [], [errors.RecoveryError]
    while waiting:
        waiting.extend((one := waiting.pop()).__subclasses__())
        if "code" in one.__dict__ and one.__module__.startswith(f"{errors.__name__}."):
            found.append(one)
    return sorted(found, key=lambda one: one.code)
