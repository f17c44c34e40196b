"""MindSpore's own log files, a directory per incarnation.

MindSpore opens them when it is imported, before a process is admitted and knows its incarnation, in
`<GLOG_log_dir>/rank_<RANK_ID or MS_NODE_ID>/logs`. An open file may be renamed: what it still writes goes along.
"""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path

_logger = logging.getLogger("recovery.mindspore")


def move_to_incarnation(incarnation: int) -> None:
    """Move this process's log files to `<GLOG_log_dir>/rank_<id>/incarnation_<n>`; without GLOG_log_dir there are none."""
    place = os.environ.get("GLOG_log_dir", "")  # noqa: SIM112, TID251 - MindSpore's variable, spelt so
    if not place:
        return
    for file in sorted(Path(place).glob(f"rank_*/logs/*.{os.getpid()}")):
        target = file.parent.with_name(f"incarnation_{incarnation}") / file.name
        try:
            target.parent.mkdir(exist_ok=True)
            file.rename(_free(target))
        except OSError as error:
            _logger.warning("event=log_not_moved path=%s %s", file, error)


def _free(target: Path) -> Path:
    """The program before an exec had the same process id, and its files stay."""
    candidates = itertools.chain(
        (target,), (target.with_name(f"{target.name}.{n}") for n in itertools.count(2))
    )
    return next(candidate for candidate in candidates if not candidate.exists())
