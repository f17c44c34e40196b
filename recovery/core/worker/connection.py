"""The worker's connection to the scheduler: dial, register, wait out a refusal, notice silence.

It knows nothing of training. What it must know of the worker comes as an argument; what its owner must do comes back as effects, or as
`GivenUp` when trying again would not help.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from recovery.core import messages as m
from recovery.core.effects import Log
from recovery.core.ids import Generation, Incarnation, NodeId, RequestId, ResumeToken
from recovery.core.policy import backoff
from recovery.core.programs import Program
from recovery.core.records import NodeRecord, NodeState
from recovery.core.rules import Rules
from recovery.core.tokens import request_of, token_digest
from recovery.core.worker import stimuli as s
from recovery.core.worker.effects import Connect, Disconnect, Send, SetTimer, WorkerEffect
from recovery.core.worker.transitions import ConnectionFact, ConnectionState, next_connection_state
from recovery.core.worker.wait_note import WaitNote

SETTLED_MS = 500
"""A connection that held for so long after the admission was a good one: its end is followed by a new dial at once. One that ends sooner,
again and again, ends for a reason that a new one does not change (a message that the scheduler refuses). Half of it would still be a
good one on a slow disk; at twice it a wire that flaps once a second would cost a node its grace."""


_LOOK_AT_ITS_HOST = (
    "Does the command run that starts the scheduler? One that was refused says so on its own host"
)
"""Behind the reason of a dial that failed, for a process that has never been let in."""

_EXPECT_NOTHING = (ConnectionState.DISCONNECTED, ConnectionState.REFUSED, ConnectionState.WAITING)


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of this process."""

    node_id: NodeId
    role: m.Role
    host: str
    pid: int
    process: m.ProcessIdentity | None = None
    """With which its end can be proven; None: this system does not say."""
    standby: bool = False
    """It waits as a standby (MS_STANDBY)."""
    replaces: NodeId = NodeId("")
    """Whose rank it was started to take (MS_REPLACES); empty: nobody's."""
    starts_again: bool = False
    """It starts its program again in its place whenever its generation ends."""
    program: Program | None = None
    """What is compared over the hosts."""
    stores: bool = False
    """It sends its checkpoints to object storage."""


class LastAdmission(NamedTuple):
    """What a registration says of where this process stands."""

    incarnation: Incarnation
    """Of the last admission; 0: there was none."""
    generation: Generation
    """The last one whose plan this process was given; 0: none."""
    job: str
    """Of that plan; empty: none."""


class GivenUp(NamedTuple):
    """The scheduler will not be asked again: the process must end."""

    code: str
    """Of the error that the process ends with; empty: there is nothing to do, which is no error."""
    reason: str
    """For people."""
    before: tuple[WorkerEffect, ...] = ()
    """What is to be done before the process ends."""


class Connection:
    """The connection of one process, over all its dials."""

    def __init__(self, identity: Identity, rules: Rules, wait: WaitNote) -> None:
        """Start disconnected."""
        self._identity, self._rules, self._wait = identity, rules, wait
        self._state = ConnectionState.DISCONNECTED
        """Changed only by `_move`."""
        self.register_id = RequestId("")
        """Request id of the registration, the same over the whole process. Set when it starts."""
        self._secret = ""
        """What the request id is made of: it shows that a repeat is this process's own. Set when it starts."""
        self._serves = ""
        """Where this node's files of checkpoints can be fetched; empty: nowhere. Set when a dial succeeds."""
        self._token: ResumeToken | None = None
        """Resume token to register with. None: this process has none, or the scheduler did not know the one it had."""
        self._dial_is_due = False
        """The timer for the next dial, or for the end of a refusal, means something. Not once the scheduler has admitted this process."""
        self._dials_failed = 0
        """Dials that failed since the last one that succeeded. Used in DISCONNECTED, for the wait before the next one."""
        self._unsettled_closes = 0
        """Connections in a row that ended before they were settled. Used when one closes."""
        self._admitted_ms = 0
        """When the scheduler admitted this process on the current connection, on the monotonic clock. Used in ADMITTED."""
        self._heard_ms = 0
        """When the scheduler was last heard, on the monotonic clock. Used while there is a connection."""
        self._unreachable_since_ms = 0
        """Since when there is no connection, on the monotonic clock. Used in DISCONNECTED."""
        self._not_let_in_since_ms: int | None = None
        """Since when a scheduler answers each dial, and does not take this process for one of its job. None: the last dial ended otherwise."""
        self._refused_since_ms = 0
        """Since when the scheduler refuses with this code, on the monotonic clock. A holder of the id that may still come back
        resets it. Used in REFUSED and WAITING."""
        self._refused_code = ""
        """The refusal that was logged last; empty: none since the last admission. Set in REFUSED and WAITING."""
        self._finished_logged = False
        """Whether it was logged that the stored job has finished. Used before the first admission."""

    @property
    def is_admitted(self) -> bool:
        """Has the scheduler admitted this process on the current connection?"""
        return self._state is ConnectionState.ADMITTED

    @property
    def _stands(self) -> bool:
        return self._state not in (ConnectionState.DISCONNECTED, ConnectionState.WAITING)

    def _move(self, fact: ConnectionFact) -> None:
        self._state = next_connection_state(self._state, fact)

    # --- dialling ------------------------------------------------------------------------------------------------------

    def on_started(self, started: s.Started, now_ms: int) -> list[WorkerEffect]:
        """The process is up: dial for the first time."""
        self.register_id, self._token = RequestId(request_of(started.secret)), started.token
        self._secret = started.secret
        self._unreachable_since_ms = now_ms
        return [*self._wait.begin("the scheduler to answer", now_ms), Connect()]

    def on_dial_due(self, last_admission: LastAdmission, now_ms: int) -> list[WorkerEffect]:
        """Dial; where the connection of a refusal still stands, ask again on it. A process that was admitted meanwhile does neither."""
        if not self._dial_is_due:
            return []
        stood = self._state is ConnectionState.REFUSED
        self._dial_is_due = False
        self._move(ConnectionFact.DIAL_DUE)
        return self._register(last_admission, now_ms) if stood else [Connect()]

    def _dial_at(self, at_ms: int) -> SetTimer:
        self._dial_is_due = True
        return SetTimer(s.WorkerTimer.DIAL, at_ms)

    def on_connect_failed(
        self, failed: s.ConnectFailed, now_ms: int, *, outside: bool, limit_ms: int | None
    ) -> list[WorkerEffect] | GivenUp:
        """A dial failed: try again, later each time. `outside`: this process was never admitted. `limit_ms`: how long that may last; None: for ever."""
        unreachable_ms, noted = now_ms - self._unreachable_since_ms, []
        if failed.finished and outside:
            patience_ms = self._rules.lease_ms + self._rules.rejoin_window_ms
            if unreachable_ms >= patience_ms:
                return _nothing_to_do(failed.finished, unreachable_ms)
            noted = self._log_finished(failed.finished, patience_ms)
        if self._is_kept_out(failed, now_ms) and outside:
            return GivenUp("NOT_LET_IN", failed.reason)
        if limit_ms is not None and unreachable_ms >= limit_ms:
            reason = f"no scheduler answered for {unreachable_ms / 1000:g} s ({failed.reason})"
            return GivenUp("SCHEDULER_UNREACHABLE", reason)
        if outside:
            self._wait.explain(
                failed.reason if failed.not_let_in else f"{failed.reason}. {_LOOK_AT_ITS_HOST}"
            )
        self._dials_failed += 1
        wait_ms = backoff.next_dial_ms(self._dials_failed - 1, failed.jitter, self._rules)
        return [*noted, self._dial_at(now_ms + wait_ms)]

    def _is_kept_out(self, failed: s.ConnectFailed, now_ms: int) -> bool:
        """For a whole lease: so long a scheduler of before may live on whose recovery path was removed, with its token."""
        if not failed.not_let_in:
            self._not_let_in_since_ms = None
            return False
        if self._not_let_in_since_ms is None:
            self._not_let_in_since_ms = now_ms
        return now_ms - self._not_let_in_since_ms >= self._rules.lease_ms

    def _log_finished(self, finished: str, patience_ms: int) -> list[Log]:
        """Nobody answers, and the stored job is over: its scheduler may be about to begin the next run. Said once."""
        if self._finished_logged:
            return []
        self._finished_logged = True
        text = (
            f"no scheduler answers, and the job of this recovery path has finished ({finished}). This process waits for "
            f"{patience_ms / 1000:g} s (MS_NODE_TIMEOUT + MS_REJOIN_WINDOW) for a scheduler that begins the next run, then it ends"
        )
        return [Log("job_is_finished", text, warning=True)]

    def on_disconnected(self, lost: s.Disconnected, now_ms: int, *, leaving: bool) -> list[WorkerEffect]:
        """The connection closed: dial again, unless a refusal has not run out. For a process that ends it is no news."""
        if not self._stands:
            # Closed from both sides: the end of it is known, and the next dial is on its way.
            return []
        was_admitted = self.is_admitted
        self._move(ConnectionFact.CLOSED)
        if self._state is ConnectionState.WAITING:
            return []
        self._unreachable_since_ms = now_ms
        settled = was_admitted and now_ms - self._admitted_ms >= SETTLED_MS
        dial = self._next_dial(settled=settled, jitter=lost.jitter, now_ms=now_ms)
        if leaving or not was_admitted:
            return [dial]
        text = f"connection to the scheduler closed ({lost.reason}); trying again"
        return [dial, Log("scheduler_lost", text, warning=True)]

    def _next_dial(self, *, settled: bool, jitter: float, now_ms: int) -> Connect | SetTimer:
        """At once, unless connections end as soon as they are there: then ever later."""
        self._unsettled_closes = 0 if settled else self._unsettled_closes + 1
        if self._unsettled_closes <= 1:
            return Connect()
        wait_ms = backoff.next_dial_ms(self._unsettled_closes - 2, jitter, self._rules)
        return self._dial_at(now_ms + wait_ms)

    # --- registering ---------------------------------------------------------------------------------------------------

    def on_connected(
        self, connected: s.Connected, last_admission: LastAdmission, now_ms: int
    ) -> list[WorkerEffect]:
        """A dial succeeded: register."""
        self._serves = connected.serves
        self._move(ConnectionFact.OPENED)
        self._dials_failed, self._not_let_in_since_ms = 0, None
        return self._register(last_admission, now_ms)

    def _register(self, last_admission: LastAdmission, now_ms: int) -> list[WorkerEffect]:
        self._heard_ms = now_ms
        register = m.Register(
            request_id=self.register_id,
            protocol=m.PROTOCOL_VERSION,
            node_id=self._identity.node_id,
            role=self._identity.role,
            host=self._identity.host,
            pid=self._identity.pid,
            process=self._identity.process,
            worker_count=self._rules.worker_count,
            server_count=self._rules.server_count,
            recovery_enabled=self._rules.recovery_enabled,
            token=self._token,
            incarnation=last_admission.incarnation,
            generation=last_admission.generation,
            job=last_admission.job,
            standby=self._identity.standby,
            replaces=self._identity.replaces,
            starts_again=self._identity.starts_again,
            request_secret=ResumeToken(self._secret),
            serves=self._serves,
            program=self._identity.program,
            stores=self._identity.stores,
        )
        return [Send(register), SetTimer(s.WorkerTimer.SILENCE, now_ms + self._rules.receive_timeout_ms)]

    def on_admitted(self, admitted: m.Admitted, now_ms: int) -> list[WorkerEffect]:
        """The scheduler has admitted this process. If it was refused before it expected nothing, and does from now on."""
        self._move(ConnectionFact.ADMITTED)
        self._dial_is_due = False
        self._token, self._admitted_ms, self._refused_code = admitted.token, now_ms, ""
        return [SetTimer(s.WorkerTimer.SILENCE, now_ms + self._rules.receive_timeout_ms)]

    def on_refused(self, refused: m.Refused, now_ms: int, *, leaving: bool) -> list[WorkerEffect] | GivenUp:
        """The scheduler does not admit this process: wait and ask again, or give up where that would not help. One that ends does not wait."""
        if refused.code == "UNKNOWN_TOKEN":
            # The scheduler closes the connection, and that dials again.
            self._token = None
            return [Log("registering_anew", refused.reason, warning=True)]
        if refused.retry_after_ms is None or leaving:
            return GivenUp(refused.code, refused.reason)
        if not self._rules.rejoin_wait:
            hint = "MS_REJOIN=fail: this process does not wait. With MS_REJOIN=wait it would."
            return GivenUp(refused.code, f"{refused.reason} {hint}")
        first = self._refused_code != refused.code
        if first or not refused.holder_connected:
            self._refused_since_ms, self._refused_code = now_ms, refused.code
        patience_ms = self._rules.lease_ms + self._rules.reconnect_grace_ms
        if refused.code == "NODE_ALIVE" and now_ms - self._refused_since_ms > patience_ms:
            # The holder of the id was heard again within a whole lease: it is alive.
            return GivenUp(refused.code, refused.reason)
        self._move(ConnectionFact.REFUSED)
        dial = self._dial_at(now_ms + refused.retry_after_ms)
        return [dial, *(self._log_refusal(refused, now_ms) if first else [])]

    def _log_refusal(self, refused: m.Refused, now_ms: int) -> list[WorkerEffect]:
        seconds = (refused.retry_after_ms or 0) / 1000
        hint = f"It asks again in {seconds:.1f} s by itself; with MS_REJOIN=fail it would end at once."
        said = Log("refused", f"{refused.code}: {refused.reason} {hint}", warning=True)
        return [said, *self._wait.begin(f"this node id to be free ({refused.code})", now_ms)]

    def own_record(self, plan: m.Rollback, admitted: m.Admitted) -> NodeRecord:
        """This node as the scheduler keeps it: should that one lose its store, this node resumes all the same."""
        return NodeRecord(
            node_id=self._identity.node_id,
            role=self._identity.role,
            rank=plan.rank,
            incarnation=admitted.incarnation,
            state=NodeState.LIVE,
            token_digest=token_digest(admitted.token),
            admission_request=self.register_id,
            host=self._identity.host,
            pid=self._identity.pid,
            generation=plan.generation,
            step=plan.step,
        )

    # --- silence -------------------------------------------------------------------------------------------------------

    def heard(self, now_ms: int) -> None:
        """A message of the scheduler has come."""
        self._heard_ms = now_ms

    def on_silence_due(self, now_ms: int) -> list[WorkerEffect]:
        """Close a connection on which nothing comes any more; its end dials again. A process that is refused for now expects nothing."""
        if self._state in _EXPECT_NOTHING:
            return []
        silent_ms = now_ms - self._heard_ms
        if silent_ms >= self._rules.receive_timeout_ms:
            text = f"no message of the scheduler for {silent_ms / 1000:.1f} s (MS_RECEIVE_MSG_TIMEOUT)"
            return [Log("scheduler_silent", text, warning=True), Disconnect()]
        return [SetTimer(s.WorkerTimer.SILENCE, self._heard_ms + self._rules.receive_timeout_ms)]

    def check(self, token: ResumeToken | None) -> None:
        """Assert what is always true of the connection."""
        if self.is_admitted:
            assert self._token == token, (
                "a process that is admitted comes back with the token of that admission"
            )
        if self._state in (ConnectionState.REFUSED, ConnectionState.WAITING):
            assert self._refused_code, "a process that waits for a refusal to run out knows which"


def _nothing_to_do(finished: str, unreachable_ms: int) -> GivenUp:
    """Nobody answers, the stored job is over, and no scheduler has begun the next run: nobody will ever answer."""
    reason = (
        f"the job of this recovery path has finished ({finished}) and no scheduler answered for "
        f"{unreachable_ms / 1000:.0f} s: there is nothing to do. To train again, start the scheduler too."
    )
    return GivenUp("", reason, (Log("nothing_to_do", reason, warning=True),))
