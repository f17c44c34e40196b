"""Work beside training that failed and did not end it: saves, copies, uploads. Counted over a run, for people."""

from __future__ import annotations

import msgspec

from recovery.core.records import EventKind, EventRecord

KINDS = {
    EventKind.CHECKPOINT_NOT_SAVED: "not_saved",
    EventKind.COPY_FAILED: "not_copied",
    EventKind.UPLOAD_FAILED: "not_uploaded",
}
"""By kind of event, where it is counted."""

FROM_ANOTHER = ", which came from another node"
"""With this the details of a `copy_failed` end where the copy was made all the same. Stores hold it in these words."""


class FailedWork(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run."""

    not_saved: int = 0
    """Saves, on the disk or in memory."""
    not_copied: int = 0
    """Copies of a rank's checkpoint that another node did not get."""
    not_uploaded: int = 0
    """Uploads of a rank's checkpoint that failed at least once; most are done at a later try."""
    last_failed: str = ""
    """Of the newest of them: which node, which step and why; empty: there is none, or its event is deleted."""

    def and_one(self, event: EventRecord) -> FailedWork:
        """What there is with one more."""
        if event.details.endswith(FROM_ANOTHER):
            return self
        field = KINDS[event.kind]
        return msgspec.structs.replace(
            self, **{field: getattr(self, field) + 1}, last_failed=sentence_of(event)
        )


def sentence_of(event: EventRecord) -> str:
    """Which node, which step and why."""
    return f"{event.node_id}, step {event.step}: {event.reason}"
