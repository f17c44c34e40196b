"""What tells a launcher that its host is to be taken away: a file (MS_NOTICE_FILE), a cloud's metadata (MS_NOTICE_URL), Slurm's SLURM_JOB_END_TIME.

The three clouds' answers, as they document them: AWS "Spot Instance interruption notices" (`spot/instance-action`: 404, or JSON with `action` and
`time`; a session token where IMDSv2 is wanted), Google "Preemptible VM instances" (`instance/preempted`: FALSE or TRUE), Azure "Scheduled
Events" (`scheduledevents`: JSON with `Events`, also of other machines of the same set, so the machine's own name is asked for).
"""

from __future__ import annotations

import asyncio
import datetime
import email.utils
import http.client
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from recovery import clock
from recovery.config import slurm_allocation
from recovery.config.reader import Reader

_ASKED_EVERY = 5
"""Of the looks, which come every second: AWS recommends to ask every 5 s."""
_ANSWER_S = 2.0
_HEADERS = {"Metadata-Flavor": "Google", "Metadata": "true"}
"""Google's and Azure's services refuse who does not send theirs; AWS' leaves both alone."""
_AWS_TOKEN_PATH = "/latest/api/token"  # noqa: S105 - a path
_AZURE_NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_TAKES_AWAY = ("Preempt", "Terminate", "Reboot", "Redeploy")
"""Azure's events behind which the processes are gone; `Freeze` is a pause."""


class Notice(NamedTuple):
    """A host is to be taken away."""

    source: str
    """For people: what said it."""
    within_s: float | None
    """How long that takes, 0 or more; None: it did not say."""


class TimeLimit(NamedTuple):
    """When Slurm ends the job that this launcher is part of."""

    ends_s: int
    """Seconds since 1970-01-01 UTC, as of its start: Slurm tells it of no later change."""
    ahead_s: float
    """So long before, that is a notice."""

    @property
    def left_s(self) -> float:
        """How long it is until then."""
        return self.ends_s - clock.utc_now().timestamp()


class Notices:
    """Of one launcher. Nothing raises: what cannot be looked at is said once, and looked at again."""

    def __init__(
        self, file: Path | None, url: str, say: Callable[[str], None], time_limit: TimeLimit | None = None
    ) -> None:
        """Note what is there already: a file of an earlier notice is none, nor is an end that is past.

        Args:
            file: of MS_NOTICE_FILE; None: none is looked for.
            url: of MS_NOTICE_URL; empty: nobody is asked.
            say: takes what a person should know.
            time_limit: of the job that Slurm runs here; None: none is known.
        """
        self._file, self._url, self._say = file, url, say
        self._looks, self._said = 0, ""
        self._old_ns = self._written_ns()
        if self._old_ns:
            say(
                f"MS_NOTICE_FILE={file} is there from before this start: it is a notice once it is written again"
            )
        if time_limit is not None and time_limit.left_s <= 0:
            say(f"SLURM_JOB_END_TIME={time_limit.ends_s} is past: it is no notice")
            time_limit = None
        self._time_limit = time_limit

    async def look(self) -> Notice | None:
        """Look once; None: this host stays."""
        written_ns = self._written_ns()
        if written_ns not in (0, self._old_ns):
            assert self._file is not None, "it was looked at"
            return Notice(f"MS_NOTICE_FILE={self._file}", self._left_by_file(self._file, written_ns))
        limit = self._time_limit
        if limit is not None and limit.left_s <= limit.ahead_s:
            return Notice(f"SLURM_JOB_END_TIME={limit.ends_s}", max(0.0, limit.left_s))
        self._looks += 1
        if not self._url or self._looks % _ASKED_EVERY != 1:
            return None
        try:
            is_taken, within_s = await asyncio.to_thread(_ask, self._url)
        except Exception as error:  # noqa: BLE001 - training goes on, whatever a service answers
            self._say_once(
                f"MS_NOTICE_URL={self._url} does not answer as a cloud's metadata does ({error}); it is asked again"
            )
            return None
        return Notice(f"MS_NOTICE_URL={self._url}", within_s) if is_taken else None

    def _written_ns(self) -> int:
        """When the file was written last; 0: it is not there."""
        try:
            return os.stat(self._file).st_mtime_ns if self._file is not None else 0  # noqa: PTH116 - None, too
        except OSError:
            return 0

    def _left_by_file(self, file: Path, written_ns: int) -> float | None:
        try:
            text = file.read_text(encoding="utf-8", errors="replace").strip()
            return seconds_left(text, written_ns / 1e9) if text else None
        except (OSError, ValueError) as error:
            self._say(f"{file} says no time ({error}): MS_STOP_GRACE counts")
            return None

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._say(text)


def of_host(
    environment: Mapping[str, str], say: Callable[[str], None], stop_grace_s: float, *, saves: bool
) -> Notices | None:
    """Those that this launcher is to look for; None: nobody gives any.

    Args:
        environment: its own.
        say: takes what a person should know.
        stop_grace_s: how long an end may take (MS_STOP_GRACE).
        saves: its ranks save a step before they leave. Else the end of Slurm's time is left to Slurm, which asks by SIGTERM.

    Raises:
        SettingError: a variable has no value of its kind.
    """
    file = Reader.of_one("MS_NOTICE_FILE", environment).path("MS_NOTICE_FILE", required=False)
    url = Reader.of_one("MS_NOTICE_URL", environment).web_address("MS_NOTICE_URL")
    ends_s = slurm_allocation.end_time(environment)
    saves = saves and environment.get("MS_ENABLE_RECOVERY") == "1"
    limit = TimeLimit(ends_s, stop_grace_s) if ends_s and saves else None
    return Notices(file, url, say, limit) if file or url or limit else None


def seconds_left(text: str, since: float | None = None) -> float:
    """How long it is from now to the time that a notice names.

    Args:
        text: seconds from `since` on, or a time of ISO 8601 or RFC 5322; without a zone it is UTC.
        since: seconds since 1970-01-01 UTC; None: a time alone counts.

    Raises:
        ValueError: it is neither.
    """
    now = clock.utc_now().timestamp()
    if since is not None and _NUMBER.fullmatch(text):
        return max(0.0, since + float(text) - now)
    try:
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        try:
            moment = email.utils.parsedate_to_datetime(text)
        except (TypeError, ValueError):
            said = f"{text[:80]!r} is neither a number of seconds nor a time"
            raise ValueError(said) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    return max(0.0, moment.timestamp() - now)


def _ask(url: str) -> tuple[bool, float | None]:
    """Ask the metadata. Gives whether this host is to be taken away, and in how many seconds; None: it does not say. Blocks."""
    parts = urlsplit(url)
    where, path = parts.netloc, f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    status, text = _request(where, "GET", path, _HEADERS)
    if status == http.client.UNAUTHORIZED:
        _, token = _request(where, "PUT", _AWS_TOKEN_PATH, {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        status, text = _request(where, "GET", path, {"X-aws-ec2-metadata-token": token})
    if status == http.client.NOT_FOUND or text.strip() in ("", "FALSE"):
        return False, None
    if status != http.client.OK:
        unexpected = f"status {status}"
        raise ValueError(unexpected)
    if text.strip() == "TRUE":
        return True, None
    said = json.loads(text)
    if not isinstance(said, dict):
        unexpected = f"{text[:80]!r}"
        raise TypeError(unexpected)
    if "Events" in said:
        return _by_azure(where, said["Events"])
    return True, seconds_left(str(said["time"])) if "time" in said else None


def _by_azure(where: str, events: Any) -> tuple[bool, float | None]:
    own = ""
    left: list[float] = []
    for event in events:
        if event.get("EventType") not in _TAKES_AWAY:
            continue
        own = own or _request(where, "GET", _AZURE_NAME_PATH, _HEADERS)[1].strip()
        if own in event.get("Resources", [own]):
            # Empty: it has begun.
            left.append(seconds_left(event["NotBefore"]) if event.get("NotBefore") else 0.0)
    return bool(left), min(left, default=None)


def _request(where: str, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
    """One request, past any proxy: the metadata of a host is the host's own."""
    connection = http.client.HTTPConnection(where, timeout=_ANSWER_S)
    try:
        connection.request(method, path, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read(65_536).decode(errors="replace")
    finally:
        connection.close()
