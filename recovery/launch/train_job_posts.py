"""A launcher in a TrainJob of Kubeflow posts how far the job is, into `status.trainerStatus` of the TrainJob.

Read in kubeflow/trainer: pkg/runtime/framework/plugins/trainjobstatus sets three variables in every container of the step `trainer`, and only
there, where the feature gate TrainJobStatus is on (alpha, from 2.2.0; drafts of it said KUBEFLOW_TRAINER_STATUS_URL; its guide, its SDK and transformers
say SERVER): the URL, and the paths of a CA and of a token that is renewed within the hour. pkg/statusserver/server.go: POST to the URL itself; 200, or a Status with a
message: 403 (the token), 404 (no such TrainJob), 422 (the body), 500. docs/user-guides/trainjob-progress.md: at most one every 5 s.

transformers (5.x, its `KubeflowCallback`) posts by itself where the URL is set, from rank 0: at 0 % again after
every recovery, with an end that is computed from there. The TrainJob has room for one status, so of two who post each would undo the other: the
workers get DISABLE_KUBEFLOW_INTEGRATION=TRUE, the switch that it has for that. Whoever sets it to something else, imports Kubeflow's SDK, or runs
a script that tells nobody its steps, posts by the script, and the launcher does not.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from recovery import clock
from recovery.launch.train_job_status import TrainJobStatus
from recovery.launch.worker_completion import WorkerCompletion
from recovery.transport.https_post import LATE, NotPostedError, post

_URL, _CA, _TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))
_SWITCH = "DISABLE_KUBEFLOW_INTEGRATION"
_SDK = "kubeflow"
_EVERY_MS = 5_000
_LOOK_S = 1.0
"""Until the scheduler is asked again, as a terminal's bottom line does."""
_ANSWER_S = 5.0
_STOPPED_S = 2.0
"""What a launcher that was asked to end, or whose job has failed, has for its last post."""
_FINISHED_S = 10.0

Say = Callable[[str], None]


class Server(NamedTuple):
    """Where the status goes."""

    url: str
    ca: str
    """Path of the file with whom to trust; empty: whom this system trusts."""
    token: str
    """Path of the file that is read for every post."""


class _Material(NamedTuple):
    token: str
    tls: ssl.SSLContext


def server_of(
    environment: Mapping[str, str], packages: Collection[str], *, tells_steps: bool, say: Say
) -> Server | None:
    """Where this job's status goes; None: its launchers post none, which is said where somebody may wait for it.

    Args:
        environment: of the launcher.
        packages: that the script imports.
        tells_steps: False: it knows nothing of recovery.
        say: takes what a person should know.
    """
    url = environment.get(_URL, "")
    if not url:
        return None
    if not _is_address(url):
        shown = "what is not shown" if "@" in url else repr(url)
        say(f"{_URL} must be an https:// URL, and is {shown}: no status of the TrainJob is posted")
        return None
    if not environment.get(_TOKEN):
        say(f"{_URL} is set and {_TOKEN}, the path of a token, is not: no status of the TrainJob is posted")
        return None
    switch, why = environment.get(_SWITCH, ""), ""
    if switch and switch.upper() != "TRUE":
        why = f"{_SWITCH}={switch}"
    elif _SDK in packages:
        why = f"it imports {_SDK}"
    elif not tells_steps:
        why = "it tells its steps to nobody else"
    if why:
        say(f"the status of the TrainJob is left to the script: {why}")
        return None
    return Server(url, environment.get(_CA, ""), environment[_TOKEN])


def for_processes(environment: Mapping[str, str]) -> dict[str, str]:
    """The same for the processes of a job whose launcher posts."""
    return {**environment, _SWITCH: "TRUE"}


class TrainJobPosts:
    """Of one launcher. Nothing raises: what goes wrong is said once, and it is posted again."""

    def __init__(
        self,
        server: Server,
        ask: Callable[[], Awaitable[Mapping[str, Any]]],
        completion: WorkerCompletion,
        say: Say,
    ) -> None:
        """Look at the files once: what is wrong with them is said before the first step.

        Args:
            server: where the status goes.
            ask: gives the scheduler's `/status`.
            completion: knows at the end whether the job has finished.
            say: takes what a person should know.
        """
        self._server, self._ask, self._completion, self._say = server, ask, completion, say
        self._status = TrainJobStatus()
        self._said: set[str] = set()
        self._sending = threading.Lock()
        try:
            _read(server)
        except NotPostedError as error:
            self._say_once(str(error))

    async def keep(self) -> None:
        """Until cancelled."""
        next_ms = 0
        while True:
            if await self._look() and clock.monotonic_ms() >= next_ms:
                await self._post(self._status.body(clock.utc_now()), _ANSWER_S)
                next_ms = clock.monotonic_ms() + _EVERY_MS
            await asyncio.sleep(_LOOK_S)

    async def end(self) -> None:
        """The last post. That of a finished job is tried for a while, since nobody comes after it."""
        has_finished = self._completion.is_finished or self._status.is_finished
        until_ms = clock.monotonic_ms() + 1000 * (_FINISHED_S if has_finished else _STOPPED_S)
        while (left_s := (until_ms - clock.monotonic_ms()) / 1000) > 0:
            body = self._status.body(clock.utc_now(), is_over=True, has_finished=has_finished)
            if await self._post(body, min(_ANSWER_S, left_s)):
                return
            await asyncio.sleep(min(_LOOK_S, left_s))
        what = "100 %" if has_finished else "where the job stands"
        self._say(f"the end was not posted to the TrainJob: {what} is not in its status")

    async def _look(self) -> bool:
        try:
            self._status.note(await self._ask(), clock.monotonic_ms())
        except OSError:
            # A scheduler that is started again: the bottom line and the agent speak of it.
            return False
        except Exception as error:  # noqa: BLE001 - what only shows ends nothing
            self._say_once(f"the scheduler's answer cannot be read ({type(error).__name__}: {error})")
            return False
        return True

    async def _post(self, body: Mapping[str, Any], within_s: float) -> bool:
        try:
            await asyncio.wait_for(asyncio.to_thread(self._send, body, within_s), within_s)
        except asyncio.TimeoutError:
            self._say_once(LATE)
            return False
        except Exception as error:  # noqa: BLE001 - training goes on, whatever a server answers
            self._say_once(str(error) or type(error).__name__)
            return False
        return True

    def _send(self, body: Mapping[str, Any], within_s: float) -> None:
        # An earlier status that is still on its way must not come behind a later one.
        if not self._sending.acquire(timeout=within_s):
            raise NotPostedError(LATE)
        try:
            material = _read(self._server)
            post(self._server.url, body, token=material.token, tls=material.tls, within_s=within_s)
        finally:
            self._sending.release()

    def _say_once(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            self._say(
                f"the status of the TrainJob is not posted to {self._server.url}: {why}; it is tried again"
            )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    is_plain = url.isascii() and url.isprintable() and " " not in url and "@" not in url
    return parts.scheme == "https" and bool(parts.hostname) and is_plain


def _read(server: Server) -> _Material:
    """The files as they are now: both are renewed while a job runs. Blocks.

    Raises:
        NotPostedError: one of them cannot be used.
    """
    try:
        token = Path(server.token).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        why = f"{_TOKEN}={server.token} cannot be read ({_short(error)})"
        raise NotPostedError(why) from error
    if not token or not token.isprintable() or " " in token:
        why = f"{_TOKEN}={server.token} holds no token: it must be one word"
        raise NotPostedError(why)
    try:
        return _Material(token, ssl.create_default_context(cafile=server.ca or None))
    except OSError as error:
        why = f"{_CA}={server.ca} cannot be used ({_short(error)})"
        raise NotPostedError(why) from error


def _short(error: Exception) -> str:
    """Nothing of what is in the file."""
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__
