"""What a launcher and the scheduler say to each other: how processes ended, which nodes are lost or known, that the job is to end."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from typing_extensions import override

from recovery import clock
from recovery.core.barrier_messages import JobSaved, StopJob
from recovery.core.converter import Converter
from recovery.core.ids import NodeId, RequestId
from recovery.core.messages import Exited, FromScheduler
from recovery.core.records import EventKind
from recovery.core.rules import Rules
from recovery.launch import console
from recovery.launch.hung_nodes import LostNodes
from recovery.launch.job_view import KnownJob, SchedulerQueries
from recovery.transport import inspection_client
from recovery.transport.access import Access
from recovery.transport.client import Client, ConnectError

_CONNECT_S = 2.0
"""The scheduler may be dead itself: then it learns from the node's next registration what there is to know."""

_STARTED_AGAIN_S = 5.0
"""A scheduler that has died and is started again by its launcher listens within so long; who asks for the end of its job waits no longer for it."""
_ASK_AGAIN_S = 0.5
"""While a step is saved: the scheduler cuts off who is no node and silent."""
_ANSWER_S = 1.0
"""How long its answer may take beyond the time that it was given."""

_Read = TypeVar("_Read")

_to_lost_nodes = Converter(LostNodes)
_to_known_job = Converter(KnownJob)


class Contact(SchedulerQueries):
    """All of it, as of a dry run, which has no scheduler. Nothing raises: one that does not answer is no failure of the launcher."""

    async def tell(self, *reports: Exited, goes_on: bool = False) -> bool:
        """Report how processes ended, of whomever they were: the scheduler knows why, and need not wait whether they come back.

        Args:
            reports: one of each process.
            goes_on: the job may, so that a scheduler which does not answer at once is busy, or is started again itself.

        Returns:
            Whether the scheduler was sent all of them.
        """
        return True

    async def lost_nodes(self) -> LostNodes | None:
        """Ask for the nodes that the scheduler holds for lost; None: it does not answer."""
        return None

    async def stop_job(self, reason: str, within_s: float, nodes: Sequence[NodeId] = ()) -> JobSaved:
        """Have every rank save a step, and wait there until its process is ended.

        Args:
            reason: for people.
            within_s: how long that may take.
            nodes: these alone leave, and the job goes on without them; none: all of it ends.
        """
        return _not_saved("there is no scheduler")

    async def why_declined(self, node_id: NodeId) -> str:
        """Ask why this standby did not get the rank that it was offered last; empty: it was offered none, or nobody knows."""
        return ""

    @override
    async def known_job(self) -> KnownJob | None:
        return None


class SchedulerContact(Contact):
    """With the scheduler at one address."""

    def __init__(self, host: str, port: int, access: Access) -> None:
        """Nothing is asked yet."""
        self._host, self._port, self._access = host, port, access

    @override
    async def tell(self, *reports: Exited, goes_on: bool = False) -> bool:
        within_s = _STARTED_AGAIN_S if goes_on else 0
        return all([await self._tell(exited, within_s) for exited in reports])

    async def _tell(self, exited: Exited, within_s: float) -> bool:
        try:
            client = self._client(lambda message: None, lambda why: None)
            await (_connect(client, within_s) if within_s else client.connect(_CONNECT_S))
            client.send(exited)
            await client.close()
        # RuntimeError: no thread could be started to look up a name.
        except (OSError, RuntimeError) as error:
            if within_s:
                told = f"the scheduler was not told how {exited.node_id} (pid {exited.pid}) ended ({exited.reason})"
                waits = f"if it is there, it waits for {exited.node_id} (MS_TOPO_TIMEOUT)"
                then = waits if exited.gives_up else "it finds out by itself"
                console.say(f"{told}: {error}; {then}", style="yellow")
            return False
        except Exception as error:  # noqa: BLE001 - it finds out by itself, later
            console.say_unknown("whether the scheduler has the report of a death", error)
            return False
        return True

    @override
    async def stop_job(self, reason: str, within_s: float, nodes: Sequence[NodeId] = ()) -> JobSaved:
        until_ms = clock.monotonic_ms() + round(within_s * 1000)
        request = RequestId(uuid.uuid4().hex)
        answered: asyncio.Future[JobSaved] = asyncio.get_running_loop().create_future()

        def answer(message: FromScheduler) -> None:
            if isinstance(message, JobSaved) and not answered.done():
                answered.set_result(message)

        def lost(why: str) -> None:
            if not answered.done():
                answered.set_result(_not_saved(f"the scheduler does not answer ({why})"))

        client = self._client(answer, lost)
        try:
            await _connect(client, min(_STARTED_AGAIN_S, within_s))
            while (left_ms := until_ms - clock.monotonic_ms()) > -_ANSWER_S * 1000 and not answered.done():
                within_ms = max(0, left_ms)
                client.send(
                    StopJob(request_id=request, reason=reason, within_ms=within_ms, nodes=tuple(nodes))
                )
                await asyncio.wait((answered,), timeout=_ASK_AGAIN_S)
        except Exception as error:  # noqa: BLE001 - the job is to end, whatever goes wrong
            lost(str(error))
        finally:
            await client.close()
        lost(f"not within {within_s:g} s")
        return answered.result()

    def _client(self, on_message: Callable[[FromScheduler], None], on_lost: Callable[[str], None]) -> Client:
        return Client(
            host=self._host,
            port=self._port,
            rules=Rules(worker_count=1),
            on_message=on_message,
            on_lost=on_lost,
            access=self._access,
        )

    @override
    async def lost_nodes(self) -> LostNodes | None:
        return await self._answer("/lost", _to_lost_nodes)

    @override
    async def why_declined(self, node_id: NodeId) -> str:
        events = await self._answer("/events", lambda events: events) or ()
        of_it = [stored["event"] for stored in events if stored["event"].get("node_id") == node_id]
        declined = [event["reason"] for event in of_it if event["kind"] == EventKind.TAKEOVER_DECLINED.value]
        return str(declined[-1]) if declined else ""

    @override
    async def known_job(self) -> KnownJob | None:
        return await self._answer("/status", _to_known_job)

    async def _answer(self, path: str, read: Callable[[Any], _Read]) -> _Read | None:
        """What the scheduler answers, as it is read; None: nothing that could be. Whatever goes wrong, the job goes on."""
        try:
            return read(await inspection_client.ask(self._host, self._port, path, access=self._access))
        except (inspection_client.NoAnswerError, msgspec.ValidationError):
            return None
        except Exception as error:  # noqa: BLE001 - see above
            console.say_unknown("what the scheduler says", error)
            return None


async def _connect(client: Client, within_s: float) -> None:
    """Dial until a scheduler answers.

    Raises:
        ConnectError: none has within this time, or it does not let this process in.
    """
    until_ms = clock.monotonic_ms() + round(within_s * 1000)
    while True:
        try:
            return await client.connect(min(_CONNECT_S, within_s))
        except ConnectError as error:
            if error.not_let_in or clock.monotonic_ms() >= until_ms:
                raise
        await asyncio.sleep(_ASK_AGAIN_S)


def _not_saved(obstacle: str) -> JobSaved:
    """Nothing is known of what lies on the ranks' disks."""
    return JobSaved(request_id=RequestId("none"), step=0, obstacle=obstacle)


async def save_last(contact: Contact, reason: str, within_s: float, at_once: asyncio.Event) -> str:
    """Have the job saved at a step at which all ranks wait. Gives what became of it, for people.

    Args:
        contact: with the scheduler, which must live until this is over.
        reason: who asks for the end.
        within_s: how long that may take.
        at_once: set when it is to take no time any more.
    """
    if not within_s:
        return "not saved: MS_STOP_GRACE=0 leaves no time for it"
    console.say(
        f"every rank saves a step first, within {round(within_s, 1):g} s; another signal ends all processes at once"
    )
    saving = asyncio.create_task(contact.stop_job(reason, within_s))
    stopped = asyncio.create_task(at_once.wait())
    await asyncio.wait((saving, stopped), return_when=asyncio.FIRST_COMPLETED)
    is_over = saving.done()
    for task in (saving, stopped):
        task.cancel()
    results = await asyncio.gather(saving, stopped, return_exceptions=True)
    return _outcome(results[0]) if is_over else "not saved: asked to stop again"


def _outcome(saved: JobSaved | BaseException | bool) -> str:
    if not isinstance(saved, JobSaved):
        return f"not saved: the launcher itself failed ({type(saved).__name__}: {saved})"
    if not saved.obstacle:
        return f"saved at step {saved.step}: the same command goes on there"
    last = f"; the last checkpoint is step {saved.step}" if saved.step else ""
    return f"not saved: {saved.obstacle}{last}"
