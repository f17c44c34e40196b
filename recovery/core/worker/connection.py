"""The worker's connection to the scheduler: dial, register, wait out a refusal, notice silence.

It comes and goes underneath training without the main thread noticing. The other half of the worker's machine is machine.py.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum

import msgspec

from recovery.core import messages as m
from recovery.core.effects import Exit, Say, SetTimer
from recovery.core.ids import Generation, Incarnation, NodeId, RequestId, ResumeToken
from recovery.core.policy import backoff
from recovery.core.records import NodeRecord, NodeState
from recovery.core.rules import Rules
from recovery.core.tokens import token_digest
from recovery.core.worker import stimuli as s
from recovery.core.worker.effects import Connect, Disconnect, Interrupt, Tell, WorkerEffect
from recovery.core.worker.job_memory import Memory
from recovery.core.worker.stimuli import Hangs

FAREWELL_MS = 2_000
"""How long a leaving process waits for the scheduler to take its last word."""

REPORT_PATIENCE_MS = 5_000
"""How long Done waits for the answers to a rank's last checkpoint reports, each of which waits for the rank's own store. Half of it could
pass on a slow disk, and a report would leave before its row; twice of it only holds up the end of a job whose disk is full."""

REPLACEMENTS_MAX = 3
"""How often in a row, without a new step, a process whose main thread hangs is replaced. A call that hung by bad luck comes through the
first time; what hangs at the same step in every program is the program's own. Half of it would give up after one more bad moment, twice
of it costs everybody three more rollbacks."""

WAIT_NOTE_MS = 30_000
"""How often a wait says what it waits for, after the first time at WAIT_NOTE_FIRST_MS."""

WAIT_NOTE_FIRST_MS = 5_000

SETTLED_MS = 500
"""A connection that held for so long after the admission was a good one: its end is dialled anew at once. One that ends sooner, again and
again, ends for a reason that a new one does not change (a message that the scheduler refuses). Half of it would still be a good one
on a slow disk; at twice it a wire that flaps once a second would cost a node its grace."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who this process is."""

    node_id: NodeId
    role: m.Role
    host: str
    pid: int


class Main(str, Enum):
    """What the main thread does."""

    IDLE = "idle"
    TRAINING = "training"
    LEAVING = "leaving"


class Link:
    """The half of the worker's machine that holds the connection."""

    def __init__(self, identity: Identity, rules: Rules) -> None:
        """Start outside the cluster.

        Args:
            identity: who registers.
            rules: durations and limits.
        """
        self._identity, self._rules = identity, rules
        self.main = Main.IDLE
        self.admitted: m.Admitted | None = None
        self.generation = Generation(0)
        self.memory = Memory()
        self._first_step_told = Generation(0)
        self._confirm_sequence = 0
        """Heartbeat whose answer confirms this incarnation after a standstill; 0: none is waited for."""
        self._register_id = RequestId("")
        self._token: ResumeToken | None = None
        self._connected = False
        self._in = False
        """Admitted on the current connection."""
        self._dials = 0
        self._closes = 0
        """Connections in a row that ended before they were settled."""
        self._admitted_ms = 0
        self._heard_ms = 0
        self._unreachable_since_ms = 0
        self._refused_since_ms = 0
        self._refused_code = ""
        self._awaiting_retry = False
        self._hangs_before, self._newest_step = Hangs(), 0
        self._finished_said = False
        self._requests: OrderedDict[RequestId, m.FromNode] = OrderedDict()
        """What must not be lost on the way: told again after every reconnect until it is answered."""
        self._waiting_for = ""
        self._waiting_since_ms = 0
        self._exit_code = ""
        self._exit_reason = ""

    def _on_started(self, started: s.Started, now_ms: int) -> list[WorkerEffect]:
        self._register_id, self._token = started.request_id, started.token
        self._hangs_before = started.hangs
        self._unreachable_since_ms = now_ms
        return [*self._wait_for("the scheduler to answer", now_ms), Connect()]

    @property
    def hangs(self) -> Hangs:
        """For the program that takes this process over. A step that none before it had applied makes the count begin again."""
        before = self._hangs_before
        progressed = self._newest_step > before.step
        return Hangs(0 if progressed else before.count, max(before.step, self._newest_step))

    def _hung(self, reason: str) -> m.Failure:
        """Why this process ends instead of being replaced once more."""
        hangs = self.hangs
        times = f"{reason}, {hangs.count + 1} times in a row and never beyond step {hangs.step}: the program hangs there"
        return m.Failure(
            request_id=RequestId(f"{self._register_id}.hung"),
            generation=self.generation,
            step=hangs.step,
            error=times,
            traceback="",
        )

    def _on_connected(self, connected: s.Connected, now_ms: int) -> list[WorkerEffect]:
        self._connected, self._dials, self._heard_ms = True, 0, now_ms
        return [Tell(self._registration()), SetTimer("silence", now_ms + self._rules.receive_timeout_ms)]

    def _registration(self) -> m.Register:
        return m.Register(
            request_id=self._register_id,
            protocol=m.PROTOCOL_VERSION,
            node_id=self._identity.node_id,
            role=self._identity.role,
            host=self._identity.host,
            pid=self._identity.pid,
            worker_count=self._rules.worker_count,
            server_count=self._rules.server_count,
            recovery_enabled=self._rules.recovery_enabled,
            token=self._token,
            incarnation=self.admitted.incarnation if self.admitted else Incarnation(0),
            generation=self.generation,
            job=self.memory.job,
        )

    def _own_row(self, plan: m.Rollback, admitted: m.Admitted) -> NodeRecord:
        """As the scheduler keeps it: should that one lose its store, this node resumes all the same."""
        return NodeRecord(
            node_id=self._identity.node_id,
            role=self._identity.role,
            rank=plan.rank,
            incarnation=admitted.incarnation,
            state=NodeState.LIVE,
            token_digest=token_digest(admitted.token),
            admission_request=self._register_id,
            host=self._identity.host,
            pid=self._identity.pid,
            generation=plan.generation,
            step=plan.step,
        )

    def _on_dial_due(self, fired: s.WorkerTimerFired, now_ms: int) -> list[WorkerEffect]:
        self._awaiting_retry = False
        return [Disconnect()] if self._connected else [Connect()]  # the end of a connection dials by itself

    def _on_connect_failed(self, failed: s.ConnectFailed, now_ms: int) -> list[WorkerEffect]:
        said: list[WorkerEffect] = []
        unreachable_ms = now_ms - self._unreachable_since_ms
        if failed.finished and self.admitted is None:
            said = self._wait_beside_a_finished_job(failed.finished, unreachable_ms)
            if self.main is Main.LEAVING:
                return said
        limit_ms = self._unreachable_limit_ms()
        if limit_ms is not None and unreachable_ms >= limit_ms:
            reason = f"no scheduler answered for {unreachable_ms / 1000:g} s ({failed.reason})"
            return self._end("SCHEDULER_UNREACHABLE", reason)
        self._dials += 1
        dial = SetTimer("dial", now_ms + backoff.next_dial_ms(self._dials - 1, failed.jitter, self._rules))
        return [*said, dial]

    def _wait_beside_a_finished_job(self, finished: str, unreachable_ms: int) -> list[WorkerEffect]:
        """Nobody answers, and the stored job is over. Its scheduler may be about to begin the next run; else nobody will ever answer."""
        patience_ms = self._rules.lease_ms + self._rules.rejoin_window_ms
        if unreachable_ms >= patience_ms:
            reason = (
                f"the job of this recovery path has finished ({finished}) and no scheduler answered for "
                f"{unreachable_ms / 1000:.0f} s: there is nothing to do. To train again, start the scheduler too."
            )
            return [Say("nothing_to_do", reason, warning=True), *self._end("", reason)]
        if self._finished_said:
            return []
        self._finished_said = True
        said = (
            f"no scheduler answers, and the job of this recovery path has finished ({finished}). This process waits for "
            f"{patience_ms / 1000:g} s (MS_NODE_TIMEOUT + MS_REJOIN_WINDOW) for a scheduler that begins the next run, then it ends"
        )
        return [Say("job_is_finished", said, warning=True)]

    def _unreachable_limit_ms(self) -> int | None:
        """Who waits for others: as long as the cluster forms. Who trains: for ever with recovery, since training needs no scheduler."""
        if self.main is Main.LEAVING:
            return FAREWELL_MS
        if self.admitted is None or (self._rules.recovery_enabled and not self._trains_on()):
            return self._rules.topology_timeout_ms
        return None if self._rules.recovery_enabled else self._rules.heartbeat_retry_timeout_ms

    def _trains_on(self) -> bool:
        """Does one step follow the other without a scheduler? Not before the world has met, after a standstill, nor when done."""
        done = any(isinstance(request, m.Done) for request in self._requests.values())
        met = self.main is Main.TRAINING and self._first_step_told == self.generation
        return met and not done and not self._confirm_sequence

    def _on_disconnected(self, lost: s.Disconnected, now_ms: int) -> list[WorkerEffect]:
        was_in, self._connected, self._in = self._in, False, False
        if self._awaiting_retry:
            return []  # it was refused; the timer dials
        self._unreachable_since_ms = now_ms
        settled = was_in and now_ms - self._admitted_ms >= SETTLED_MS
        effects: list[WorkerEffect] = [self._next_dial(settled=settled, jitter=lost.jitter, now_ms=now_ms)]
        if was_in and self.main is not Main.LEAVING:
            effects.append(
                Say(
                    "scheduler_lost",
                    f"connection to the scheduler closed ({lost.reason}); trying again",
                    warning=True,
                )
            )
        return effects

    def _next_dial(self, *, settled: bool, jitter: float, now_ms: int) -> Connect | SetTimer:
        """At once, unless connections end as soon as they are there: then ever later."""
        self._closes = 0 if settled else self._closes + 1
        if self._closes <= 1:
            return Connect()
        return SetTimer("dial", now_ms + backoff.next_dial_ms(self._closes - 2, jitter, self._rules))

    def _on_silence_due(self, fired: s.WorkerTimerFired, now_ms: int) -> list[WorkerEffect]:
        if not self._connected:
            return []
        silent_ms = now_ms - self._heard_ms
        if silent_ms >= self._rules.receive_timeout_ms:
            return [
                Say(
                    "scheduler_silent",
                    f"no word of the scheduler for {silent_ms / 1000:.1f} s (MS_RECEIVE_MSG_TIMEOUT)",
                    warning=True,
                ),
                Disconnect(),
            ]
        return [SetTimer("silence", self._heard_ms + self._rules.receive_timeout_ms)]

    def _on_refused(self, refused: m.Refused, now_ms: int) -> list[WorkerEffect]:
        if refused.code == "UNKNOWN_TOKEN":
            self._token = None
            return [
                Say("registering_anew", refused.reason, warning=True)
            ]  # the scheduler hangs up, that dials anew
        if refused.retry_after_ms is None or self.main is Main.LEAVING:
            return self._end(refused.code, refused.reason)
        if not self._rules.rejoin_wait:
            hint = "MS_REJOIN=fail: this process does not wait. With MS_REJOIN=wait it would."
            return self._end(refused.code, f"{refused.reason} {hint}")
        first = self._refused_code != refused.code
        if first or not refused.holder_connected:
            self._refused_since_ms, self._refused_code = now_ms, refused.code
        patience_ms = self._rules.lease_ms + self._rules.reconnect_grace_ms
        if refused.code == "NODE_ALIVE" and now_ms - self._refused_since_ms > patience_ms:
            return self._end(
                refused.code, refused.reason
            )  # heard again within a whole lease: the holder lives
        self._awaiting_retry = True
        effects: list[WorkerEffect] = [SetTimer("dial", now_ms + refused.retry_after_ms)]
        if first:
            seconds = refused.retry_after_ms / 1000
            hint = f"It asks again in {seconds:.1f} s by itself; with MS_REJOIN=fail it would end at once."
            effects.append(Say("refused", f"{refused.code}: {refused.reason} {hint}", warning=True))
            effects += self._wait_for(f"this node id to be free ({refused.code})", now_ms)
        return effects

    def _end(self, code: str, reason: str) -> list[WorkerEffect]:
        """Leave for good. A main thread that trains is told by the interrupt, and finds out why when it waits for a plan."""
        training = self.main is Main.TRAINING
        self.main = Main.LEAVING
        exit_ = Exit(self._exit_code or code, self._exit_reason or reason)
        return [exit_, *([Interrupt(self.generation, reason)] if training else [])]

    # --- small pieces --------------------------------------------------------------------------------------------------

    def _request(self, request: m.CheckpointInvalid | m.Failure | m.Done | m.Leave) -> list[WorkerEffect]:
        """Tell it, and again after every reconnect until it is answered."""
        self._requests[request.request_id] = request
        return [Tell(request)]

    def _reports(self) -> list[m.CheckpointReport]:
        """Saved, and not yet answered."""
        return [request for request in self._requests.values() if isinstance(request, m.CheckpointReport)]

    def _done(self) -> list[WorkerEffect]:
        """Say that this rank is done, if it is: once every checkpoint it has saved is known, since nothing counts after the last Done."""
        if self._reports():
            return []
        return [Tell(request) for request in self._requests.values() if isinstance(request, m.Done)]

    def _on_reports_due(self, fired: s.WorkerTimerFired, now_ms: int) -> list[WorkerEffect]:
        """Its own store has not written its last checkpoints: they are told without their rows, so that the job can end."""
        reports = self._reports()
        if not reports or not self._in or not any(isinstance(one, m.Done) for one in self._requests.values()):
            return []  # what waits for a connection is told when there is one
        steps = ", ".join(str(report.checkpoint.step) for report in reports)
        said = Say(
            "report_not_stored",
            f"step {steps}: this worker's own store has not written it within {REPORT_PATIENCE_MS / 1000:g} s; "
            "reported all the same, so that the job can end",
            warning=True,
        )
        return [said, *(Tell(request) for request in self._requests.values())]

    def _wait_for(self, what: str, now_ms: int) -> list[WorkerEffect]:
        """Every wait says what it waits for: after 5 s, then every 30 s."""
        self._waiting_for, self._waiting_since_ms = what, now_ms
        return [SetTimer("wait", now_ms + WAIT_NOTE_FIRST_MS)]

    def _on_wait_due(self, fired: s.WorkerTimerFired, now_ms: int) -> list[WorkerEffect]:
        if not self._waiting_for:
            return []
        seconds = (now_ms - self._waiting_since_ms) / 1000
        return [
            Say("waiting", f"waiting for {self._waiting_for}, {seconds:.0f} s so far"),
            SetTimer("wait", now_ms + WAIT_NOTE_MS),
        ]

    def _leave_with(
        self, last_word: m.Failure | m.Leave, code: str, reason: str, now_ms: int
    ) -> list[WorkerEffect]:
        self.main, self._exit_code, self._exit_reason = Main.LEAVING, code, reason
        if self.admitted is None:
            return [Exit(code, reason)]
        return [*self._request(last_word), SetTimer("farewell", now_ms + FAREWELL_MS)]

    def _on_farewell_due(self, fired: s.WorkerTimerFired, now_ms: int) -> list[WorkerEffect]:
        return [Exit(self._exit_code, self._exit_reason)]
