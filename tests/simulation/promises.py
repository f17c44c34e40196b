"""The promises of docs/guarantees.md, checked while things happen. Each failure begins with the number it breaks.

I1   one living incarnation per id            I8, I9  one target for all, the newest step that all hold, of one history
I2   numbers only rise                        I10     no step is skipped or done twice
I3   a lost id waits out its window           I11     the two newest committed steps and every target stay
I4   a refused try changes nothing            I12     a fenced incarnation changes nothing
I5   acknowledged is durable                  I13     a repeated request has one effect
I6   a transaction is whole                   I14     every job ends (run.py)
I19  a plan says what it gives up
I18  no decision looks at a wall clock (house tests; here every process's clock begins anywhere and drifts)
I20  all ranks end with one history (run.py)
I21  a rank is taken over from who is gone    I22     a rank has one holder (slot_promises.py, store_model.py)
I23  a wrong word kills nobody                I24     nobody waits for a standby
I25  who waits is let in at once               I26     a departure loses no step, and keeps nobody (stops.py)
I27  a plan names only who holds               I28     what is fetched is verified (exchange.py)
I29  a copy does not outlive its history (exchange.py)
I30, I31  live rollback (live_promises.py)
I32  training that a script has ended ends at one step (training_stops.py)
I7, I15, I16, I17 and the rest of I19 are about files, certificates, secrets, memory and damage: tests/store, tests/transport, tests/faults.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from recovery.core import messages as m
from recovery.core.effects import Answer, Persist
from recovery.core.ids import ConnectionId, Rank, RequestId
from recovery.core.policy.retention import IN_MEMORY_STEPS
from recovery.core.policy.rollback import LOST_MEMORY, STEPS_NAMED
from recovery.core.records import (
    CheckpointRecord,
    CheckpointState,
    EventKind,
    EventRecord,
    IncarnationRecord,
    JobRecord,
    JobState,
    NodeRecord,
    NodeState,
    RunRecord,
)
from recovery.core.scheduler.effects import SchedulerEffect, Send
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.stimuli import ConnectionLost, MessageReceived, ProcessGone, SchedulerStimulus
from recovery.core.tiers import Tier, tier_of
from tests.simulation.files import COPIES
from tests.simulation.live_promises import LivePromises
from tests.simulation.slot_promises import SlotPromises, Watch

if TYPE_CHECKING:
    from tests.simulation.files import Content
    from tests.simulation.process import Process
    from tests.simulation.scheduler import SchedulerProcess
    from tests.simulation.world import World


class Promises:
    """What was promised so far, and what was looked at how often."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.checked: Counter[str] = Counter()
        self._admitted: dict[str, int] = {}
        """By id: the newest incarnation that this store has acknowledged."""
        self._planned = (0, 0)
        self._scheduler_sent = 0
        self._heard: dict[tuple[str, int], int] = {}
        """When (everybody's time) a scheduler last heard an incarnation of an id."""
        self._plans: list[tuple[int, int, int]] = []
        """(run, generation, step) of every plan that was sent, in order."""
        self._received: dict[tuple[int, int], dict[int, Process]] = {}
        self._histories: dict[tuple[int, int], Content] = {}
        self._claims: dict[str, dict[int, m.HeldCheckpoint]] = {}
        """What each id has reported to the scheduler to hold, by step."""
        self._of_rank: dict[str, int] = {}
        """By id: whose files it brought from a job that this scheduler did not know."""
        self._bad: set[str] = set()
        """Digests of files that their ranks found to be bad."""
        self._fetched: set[str] = set()
        """Where files lie that were fetched since: they are good, whatever the first of the same digest was like."""
        self._applied: dict[tuple[str, int], list[int]] = {}
        """By job and rank: a job that nobody knew who came makes room for the next, and may be found again (docs/limitations.md)."""
        self._applied_in: dict[tuple[str, int], tuple[int, int]] = {}
        self._run_of_steps = 0
        self._lost = False
        """The store was lost, and no plan has been sent since."""
        self._builds_again = False
        """The store was lost, and no plan has been made since."""
        self._left_behind: set[Process] = set()
        """Processes whose plan counts nowhere: it came when their slots were another's, or nobody knew it who came when a lost store was
        built again, so that its number is given a second time."""
        self._unheard: set[Process] = set()
        """Those of them for the second reason."""
        self._every_plan: set[tuple[int, int, int]] = set()
        """Run, generation and step of what has left a scheduler, also where nobody follows it: some process may have noted its number. A plan that was
        made and not written has left none, and its number is given again."""
        self._uncounted: dict[tuple[str, int], int] = {}
        """By job and rank: the highest step that any of them has done; none counts as long as their world is not found again."""
        self._newest_incarnation: dict[str, tuple[int, tuple[int, int]]] = {}
        """By id: the newest incarnation that received a plan, and run and generation of that. A store that is lost forgets it, who was replaced by it stays so."""
        self._rebuilt_from = (0, 0)
        """Run and generation of the first plan of the newest store that was built again: it counts incarnations anew where nobody who came knew them."""
        self.slots = SlotPromises(world, self)
        self._committed: dict[tuple[str, int], int] = {}
        """By job and run: the newest step that somebody received as held by all. Of a job that everybody who came had forgotten: nothing."""
        self.live = LivePromises(world, self)

    def store_lost(self) -> None:
        """What was written is gone, or is in a moment; the numbers and the plans that anybody has received are not, nor whose rank was taken."""
        if not self._builds_again:
            # One that is being built again knows no holders yet; an incarnation that it has counted on says nothing: the next store counts anew.
            known = [one for one in self.world.living if (NodeRecord, one.name) in self.world.store.rows]
            self._left_behind |= {one for one in known if self.slots.lost_its_slot(one, one.plan)}
            # Nor does one count that never came to this store, whose plans others follow: to the next store its id may be that of another process.
            unknown = [one for one in self.world.living if one not in known]
            self._left_behind |= {one for one in unknown if one.plan and self._is_overtaken(one.plan)}
        self._lost = self._builds_again = True
        self._admitted.clear()
        self._planned, self._scheduler_sent = (0, 0), 0
        self._plans = [plan for plan in self._plans if plan[:2] in self._received]
        self.live.only_sent(self._plans)

    def disk_lost(self, names: Iterable[str]) -> None:
        """What these ids had noted is gone with their processes; which incarnations they were only the store still knows."""
        for name in names:
            self._newest_incarnation.pop(name, None)

    # --- the scheduler -------------------------------------------------------------------------------------------------

    def scheduler_started(self, scheduler: SchedulerProcess) -> None:
        """I5, I2: what an earlier process acknowledged is what this one begins with."""
        self.checked["I5"] += 1
        store = self.world.store
        for name, incarnation in self._admitted.items():
            row = store.rows.get((NodeRecord, name))
            assert row is not None, f"I5: {name} is lost"
            assert row.incarnation >= incarnation, f"I5: incarnation {incarnation} of {name} is lost"
        job = store.job
        if job is not None:
            written = (job.run, job.generation)
            assert self._lost or written >= self._planned, f"I5: the plan {self._planned} is lost"
            # A plan that was not written was not sent.
            self._plans = [plan for plan in self._plans if plan[:2] <= written or plan[:2] in self._received]
            self.live.only_sent(self._plans)
        number = scheduler.machine.state.job.scheduler_incarnation
        assert number > self._scheduler_sent, (
            f"I2: the scheduler's number {number} was sent by an earlier process"
        )
        # Every node reports again what it holds before there is a plan.
        self._claims.clear()
        self.live.scheduler_started()
        self._of_rank.clear()
        self._fetched.clear()
        self.world.exchange.scheduler_started()
        self._bad = {
            row.digest for row in store.all(CheckpointRecord) if row.state is CheckpointState.INVALID
        }

    def counted(self, scheduler: SchedulerProcess) -> None:
        """I14: whether all ranks are ready is known by counts that are kept as nodes change; counted again they are the same."""
        self.checked["I14"] += 1
        scheduler.machine.check()

    def before(self, scheduler: SchedulerProcess, stimulus: SchedulerStimulus) -> Watch:
        """Look at the machine before it takes a stimulus; the answer looks again at what came of it."""
        watch, nodes = self._before(scheduler, stimulus), scheduler.machine.state.nodes
        before = {str(name): (node.record, node.process) for name, node in nodes.items()}
        self.slots.before = before
        self.live.before(scheduler)

        def after(effects: list[SchedulerEffect]) -> None:
            watch(effects)
            for name, node in scheduler.machine.state.nodes.items():
                record, process = before.get(name, (None, None))
                if record is None or node.record.incarnation > record.incarnation:
                    self._admitted_now(stimulus, node.record, record, process, effects)

        return after

    def _before(self, scheduler: SchedulerProcess, stimulus: SchedulerStimulus) -> Watch:
        known = scheduler.machine.state
        after_all = partial(self._after_all, scheduler)
        if isinstance(stimulus, ConnectionLost):
            speaker = known.speaker(stimulus.connection)
            if speaker is not None:
                self._hear(speaker.record)
            return after_all
        if isinstance(stimulus, ProcessGone):
            return self.slots.before_word(scheduler, after_all)
        if not isinstance(stimulus, MessageReceived):
            return after_all
        return self._before_message(scheduler, stimulus, after_all)

    def _before_message(
        self, scheduler: SchedulerProcess, stimulus: MessageReceived, after_all: Watch
    ) -> Watch:
        known, message = scheduler.machine.state, stimulus.message
        if isinstance(message, m.Register):
            return self._before_register(scheduler, stimulus.connection, message)
        if isinstance(message, m.Exited):
            return self.slots.before_word(scheduler, after_all)
        speaker = known.speaker(stimulus.connection)
        if speaker is None:
            state = state_of(scheduler)
            return lambda effects: self.unchanged(
                "I12", scheduler, state, f"{message} of a stranger or a fenced incarnation"
            )
        self._hear(speaker.record)
        if getattr(message, "request_id", RequestId("")) in speaker.answers:
            state, answer = state_of(scheduler), speaker.answers[message.request_id]  # type: ignore[union-attr]  # it has one: see above
            return lambda effects: self._repeated(scheduler, state, answer, effects)
        if speaker.record.state is NodeState.LEFT:
            # It reports nothing more.
            return after_all
        sent, generation, rank = speaker.sent_generation, known.job.generation, speaker.record.rank
        watch = self.slots.before_answer(scheduler, speaker, message)

        def after(effects: list[SchedulerEffect]) -> None:
            self._note_claims(speaker, (rank, speaker.record.rank), message, sent, generation)
            self.world.exchange.note(speaker, message, sent, generation)
            watch(effects)
            after_all(effects)

        return after

    def _before_register(
        self, scheduler: SchedulerProcess, connection: ConnectionId, register: m.Register
    ) -> Watch:
        state = state_of(scheduler)
        replaced = self.slots.replaced_incarnation(scheduler, register.node_id)

        def after(effects: list[SchedulerEffect]) -> None:
            if any(
                isinstance(effect, Send)
                and effect.connection == connection
                and isinstance(effect.message, m.Refused)
                for effect in effects
            ):
                self.unchanged("I4", scheduler, state, f"the refused try of {register.node_id}")
                return
            now = scheduler.machine.state.nodes.get(register.node_id)
            if now is not None and now.connection == connection:
                assert now.record.incarnation != replaced, (
                    f"I21: {register.node_id} was resumed, and its rank is another's"
                )
                self._hear(now.record)
            self._after_all(scheduler, effects)

        return after

    def _admitted_now(
        self,
        stimulus: SchedulerStimulus,
        now: NodeRecord,
        before: NodeRecord | None,
        process: m.ProcessIdentity | None,
        effects: list[SchedulerEffect],
    ) -> None:
        """A next incarnation is in: its process asked now, or was told at once because of something else."""
        if _rebuilt(effects):
            # Who reports an incarnation to a rebuilt store is given the next number at once.
            return
        if not isinstance(stimulus, MessageReceived) or not isinstance(stimulus.message, m.Register):
            self.world.clock.seen["who waited was told at once"] += 1
        happened = _happened(effects, now.node_id)
        if EventKind.NODE_LEFT not in happened:
            lost_now = EventKind.NODE_LOST in happened
            self._window_is_over(before, process, now.node_id, lost_now=lost_now)
        self._hear(now)

    def _hear(self, record: NodeRecord) -> None:
        """A return from the dead counts when it is durable: before, nobody has heard of it, and a next process knows nothing of it.

        What is written or being written counts as well: the next process may find that the node was lost, and not that it came back behind that.
        """
        key = (NodeRecord, record.node_id)
        scheduler, store = self.world.scheduler, self.world.store
        written = scheduler.written(record.node_id) if scheduler is not None else []
        found = (store.is_durable(key), store.rows.get(key), *written)
        if not any(
            row.state is NodeState.LOST for row in found if row and row.incarnation == record.incarnation
        ):
            self._heard[record.node_id, record.incarnation] = self.world.clock.now

    def _window_is_over(
        self, before: NodeRecord | None, process: m.ProcessIdentity | None, name: str, *, lost_now: bool
    ) -> None:
        self.checked["I3"] += 1
        if before is None or before.state is NodeState.LEFT:
            return
        assert before.state is NodeState.LOST or lost_now, (
            f"I1: {name} was {before.state.value} when its next incarnation was admitted"
        )
        if self.world.rules.rejoin_on_proof and self.world.proofs.has_ended(process):
            return
        silent_ms = self.silent_ms(before)
        least_ms = self.world.rules.rejoin_window_ms * (1 - self.world.shape.drift) - 1
        assert silent_ms >= least_ms, f"I3: {name} was let in again after {silent_ms} ms"

    def silent_ms(self, record: NodeRecord) -> int:
        """How long ago (everybody's time) a scheduler heard an incarnation. A rebuilt store gives a living process its next number."""
        name = record.node_id
        earlier = (
            at for (one, number), at in self._heard.items() if one == name and number < record.incarnation
        )
        heard = self._heard.get((name, record.incarnation))
        return self.world.clock.now - (max(earlier, default=0) if heard is None else heard)

    def unchanged(self, number: str, scheduler: SchedulerProcess, before: Any, what: str) -> None:
        self.checked[number] += 1
        assert state_of(scheduler) == before, f"{number}: {what} changed the scheduler's state"

    def _repeated(
        self,
        scheduler: SchedulerProcess,
        before: Any,
        answer: m.FromScheduler,
        effects: list[SchedulerEffect],
    ) -> None:
        self.unchanged("I13", scheduler, before, "a repeated request")
        answers = [
            step.message
            for effect in effects
            if isinstance(effect, Persist)
            for step in effect.then
            if isinstance(step, Answer)
        ]
        assert answers == [answer], f"I13: another answer to a repeat: {answers}, {answer} before"

    def _after_all(self, scheduler: SchedulerProcess, effects: list[SchedulerEffect]) -> None:
        """I9: a plan that was just made. I2: a run begins with a scheduler's process, never within one."""
        self.slots.after_all(scheduler, effects)
        self.world.drains.after_all(scheduler, effects)
        for effect in effects:
            if isinstance(effect, Persist):
                self.checked["I2"] += 1
                events = {record.kind for record in effect.records if isinstance(record, EventRecord)}
                assert EventKind.STORE_REBUILT in events or not any(
                    isinstance(record, RunRecord) and not record.outcome for record in effect.records
                ), "I2: a run began under a scheduler that was about to end"
                assert EventKind.REPLICAS_DIFFER not in events, (
                    "I8: sound ranks of one history are said to differ"
                )
                for record in effect.records:
                    if isinstance(record, EventRecord) and record.kind is EventKind.PLAN_MADE:
                        self._says_what_it_gives_up(record)
                    elif isinstance(record, JobRecord):
                        self._job_ended(scheduler, record)
                for step in effect.then:
                    if isinstance(step, Answer) and isinstance(step.message, m.Rollback):
                        self._plan_made(scheduler, step.message)
                        is_new = EventKind.PLAN_MADE in events
                        self.world.exchange.plan_made(scheduler, step.message, is_new=is_new)

    def _job_ended(self, scheduler: SchedulerProcess, job: JobRecord) -> None:
        """I9: a job does not end for want of a common checkpoint while there is one."""
        if job.state is JobState.FINISHED:
            self.live.finished()
        if job.state is JobState.FAILED and job.reason.startswith("no step is held"):
            common = self._newest_common(scheduler, job.run)
            assert not common, f"I9: the job ended, and all ranks hold step {common}"
            self.live.failed(scheduler, job.run)

    def _says_what_it_gives_up(self, plan: EventRecord) -> None:
        """I19: newer steps that were committed, and that training would still go through, are named with whose file is not usable."""
        self.checked["I19"] += 1
        assert plan.step is not None, "a plan begins at a step"
        committed = {
            row.step
            for row in self.world.store.all(CheckpointRecord)
            if row.run == plan.run
            and row.state is CheckpointState.COMMITTED
            and row.step > plan.step
            and self.is_past(row)
        }
        for step in sorted(committed - self._let_go(committed), reverse=True)[:STEPS_NAMED]:
            self.world.clock.seen["a plan gave up a committed step"] += 1
            if LOST_MEMORY in plan.reason:
                self.world.clock.seen["a plan gave up a step that was in memory"] += 1
            named = {
                int(one)
                for one in re.findall(r"step (\d+) was committed and is not usable: rank ", plan.reason)
            }
            # What was being copied from memory to memory counts longer than what ranks keep by themselves; a file that its rank has found to
            # be bad is not among the committed ones any more.
            newer = {one for one in named if one > step}
            assert step in named or len(newer) == STEPS_NAMED, (
                f"I19: the plan at {plan.step} gives up step {step} without a word: {plan.reason}"
            )

    def _let_go(self, committed: set[int]) -> set[int]:
        """Which of these steps were in memory and are older than what ranks keep there: nobody counts on them."""
        in_memory = [
            row
            for row in self.world.store.all(CheckpointRecord)
            if row.step in committed and tier_of(row.path) is Tier.MEMORY
        ]
        # A rank that had let go of its file before the others did has no row that says so.
        retired = {row.step for row in in_memory if row.state is CheckpointState.RETIRED}
        return {*retired, *sorted({row.step for row in in_memory}, reverse=True)[IN_MEMORY_STEPS:]}

    def _plan_made(self, scheduler: SchedulerProcess, plan: m.Rollback) -> None:
        if self._builds_again:
            self._builds_again = False
            self._forget_unheard(scheduler, plan)
        self.live.one_source(plan)
        if self._plans and self._plans[-1][:2] >= (plan.run, plan.generation):
            assert self._plans[-1] == (plan.run, plan.generation, plan.step), (
                f"I9: another target in the same generation: {plan}"
            )
            return
        self.checked["I9"] += 1
        if self.live.is_live(scheduler, plan):
            self._note_plan(plan)
            return
        committed = max((step for (_, run), step in self._committed.items() if run == plan.run), default=0)
        assert plan.step or not committed, f"I9: back to step 0 although all ranks held step {committed}"
        expected = self._newest_common(scheduler, plan.run)
        assert plan.step == expected, (
            f"I9: the target is {plan.step}, the newest step that all hold is {expected}"
        )
        self._note_plan(plan)

    def _note_plan(self, plan: m.Rollback) -> None:
        self.live.planned(plan)
        self._plans.append((plan.run, plan.generation, plan.step))
        for held in self._claims.values():
            for newer in [step for step in held if step > plan.step]:
                del held[newer]

    def _forget_unheard(self, scheduler: SchedulerProcess, plan: m.Rollback) -> None:
        """The first plan of a store that was built again: it follows the newest plan of which anybody who is here was told.

        Whoever knew of later ones was not there, so its plans count nowhere, and what they rolled back is gone back to (docs/limitations.md).
        """
        self.checked["I2"] += 1
        self._rebuilt_from = (plan.run, plan.generation)
        here = [
            node.record.node_id
            for node in scheduler.machine.state.nodes.values()
            if node.record.state is NodeState.LIVE
        ]
        known = {one for name in here for one in self.world.notes[name].generations}
        assert (plan.run, plan.generation) not in known, (
            f"I2: generation {plan.generation} is given twice, and one of {here} has been told of it"
        )
        jobs = {notes.job.job for name in here if (notes := self.world.notes[name]).job is not None}
        for forgotten in [key for key in self._committed if key[0] not in jobs]:
            # The disks of all who came were lost as well, or they are of a job before that one: nobody could know better.
            self.world.clock.seen["a job was forgotten: nobody who came had trained in it"] += 1
            del self._committed[forgotten]
        # One that came may have brought what the stores of its place knew, and files name plans too.
        followed = (one.generation for one in scheduler.machine.state.generations)
        newest = max(known | {(plan.run, one) for one in followed if one < plan.generation}, default=(0, 0))
        if newest < max(self._received, default=(0, 0)):
            # Standbys had taken every rank over, and none of them came: nor has anybody who knows what they have saved.
            self._committed = {key: step for key, step in self._committed.items() if key[1] != plan.run}
        unheard = {one[:2] for one in self._plans if one[:2] > newest}
        if any(one >= (plan.run, plan.generation) for one in unheard):
            self.world.clock.seen["a number was given twice: nobody who came knew of it"] += 1
        self._unheard |= {
            one for one in self.world.living if one.plan and (one.plan.run, one.plan.generation) in unheard
        }
        self._left_behind |= self._unheard
        # Of one that a lost store had made somebody may have been told, who was not there when the next one was built.
        told = {one for one in self._every_plan if one[:2] in known}
        self._plans = sorted({*told, *(one for one in self._plans if one[:2] not in unheard)})
        self.live.only_sent(self._plans)
        for number in unheard:
            self._received.pop(number, None)
            self._histories.pop(number, None)
        for of, number in self._applied_in.items():
            if number in unheard:
                self._applied_in[of] = (number[0], 0)
                self._uncounted[of] = max(len(self._applied[of]), self._uncounted.get(of, 0))
                self._applied[of] = list(range(1, plan.step + 1))
        self._count_left_behind(plan)

    def _count_left_behind(self, plan: m.Rollback) -> None:
        """The store was lost, and with it who had been left behind: now such a world may be the one that is found, and what it has trained counts.

        A rank of it whose process has died is followed by another process, which goes on from its file.
        """
        for of, applied in self._applied.items():
            if of[0] == plan.job and len(applied) < plan.step <= self._uncounted.get(of, 0):
                self.world.clock.seen["a world that had been left behind was planned from"] += 1
                self._applied[of] = list(range(1, plan.step + 1))

    def _newest_common(self, scheduler: SchedulerProcess, run: int) -> int:
        """Counted again from what the ranks said, by histories instead of by generations."""
        claims = []
        for node in scheduler.machine.state.workers:
            of_others = self.world.exchange.claims_for(scheduler, node)
            own = self.claims_of(node.record.node_id)
            if self._of_rank.get(node.record.node_id, node.record.rank) != node.record.rank:
                # It brought the files of the rank that it had in a job whose store is lost, and has another one now.
                own = {}
            claims.append({**of_others, **{step: one for step, one in own.items() if self.is_past(one)}})
        return self.newest_of(claims, run)

    def claims_of(self, name: str) -> dict[int, m.HeldCheckpoint]:
        """What an id has reported to this scheduler to hold and may be used, by step."""
        return {step: one for step, one in self._claims.get(name, {}).items() if self._may_be_used(one)}

    def newest_of(self, claims: list[dict[int, m.HeldCheckpoint]], run: int) -> int:
        """The newest step that is in all of them, usable, and of the history that counts; 0: none."""
        common = set.intersection(*(set(held) for held in claims))
        for step in sorted(common, reverse=True):
            files = [held[step] for held in claims]
            if all(file.run == run and self.is_past(file) for file in files):
                return step
        return 0

    def _may_be_used(self, file: m.HeldCheckpoint) -> bool:
        """Was it never found to be bad, or fetched since?"""
        return file.digest not in self._bad or file.path in self._fetched

    def newest_common(self, scheduler: SchedulerProcess, run: int) -> int:
        """As `_newest_common`."""
        return self._newest_common(scheduler, run)

    def given(self, source: Process, plan: m.Rollback) -> None:
        """As `LivePromises.given`."""
        self.live.given(source, plan)

    def is_past(self, file: m.HeldCheckpoint | m.LiveState | CheckpointRecord) -> bool:
        """Does training, as it was planned since, still go through this file?"""
        return not any(
            run == file.run and generation > file.generation and step < file.step
            for run, generation, step in self._plans
        )

    def _note_claims(
        self,
        node: Node,
        ranks: tuple[Rank | None, Rank | None],
        message: m.FromNode,
        sent_generation: int,
        generation: int,
    ) -> None:
        """Keep what a node says of the files of its rank: as it was before the message, and behind it. Other files count nowhere."""
        name = node.record.node_id
        self.live.note(node, message, sent_generation, generation)
        if isinstance(message, m.Ready):
            is_fresh = node.took_over and not message.generation
            names_its_rank = message.past is not None and message.past.rank == ranks[1]
            of_its_rank = message.rank in ranks or (message.rank is None and not is_fresh) or names_its_rank
            if message.generation >= sent_generation and of_its_rank:
                reported = message.past.held if message.past is not None else message.held
                self._claims[name] = {held.step: held for held in reported}
                self._of_rank.pop(name, None)
                if message.past is not None:
                    self._of_rank[name] = message.past.rank
        elif isinstance(message, m.CheckpointReport) and self.is_past(message.checkpoint):
            self._claims.setdefault(name, {})[message.checkpoint.step] = message.checkpoint
            if COPIES in message.checkpoint.path:
                self._fetched.add(message.checkpoint.path)
        elif isinstance(message, m.CheckpointInvalid) and message.path.startswith("live:"):
            pass
        elif isinstance(message, m.CheckpointInvalid) and message.generation == generation:
            self._claims.get(name, {}).pop(message.step, None)
            bad = self.world.disk.was_at(message.path)
            self._fetched.discard(message.path)
            if bad is None and self.world.exchange.has_lost_disks:
                return
            assert bad is not None, f"I19: {name} says of a file that never was that it is bad: {message}"
            self._bad.add(bad.held.digest)

    def answered(self, scheduler: SchedulerProcess, answer: Answer) -> None:
        """I5: what leaves now is durable by now."""
        self.checked["I5"] += 1
        store, message, wire = self.world.store, answer.message, scheduler.wires.get(answer.connection)
        if isinstance(message, (m.Admitted, m.Rollback)) and wire is not None:
            name = wire.near.name
            self._admitted[name] = max(self._admitted.get(name, 0), message.incarnation)
        if isinstance(message, m.JobEnded):
            assert message.outcome.value in self.world.outcomes, f"I5: {message} before it is written"
        elif isinstance(message, m.Rollback):
            job = store.is_durable((JobRecord,))
            assert (job.run, job.generation) >= (message.run, message.generation), (
                "I5: a plan before it is written"
            )
            self._planned = max(self._planned, (message.run, message.generation))
            self._every_plan.add((message.run, message.generation, message.step))
            self._lost = False
        elif isinstance(message, m.Admitted):
            self._scheduler_sent = message.scheduler_incarnation
            rows = [row for row in store.all(NodeRecord) if row.incarnation == message.incarnation]
            named = [
                row for row in rows if store.is_durable((IncarnationRecord, row.node_id, row.incarnation))
            ]
            assert named, f"I5: {message} before it is written"
        elif isinstance(message, m.Committed):
            self.live.committed(message)
            durable = message.step if message.durable_step is None else message.durable_step
            of_job = (store.is_durable((JobRecord,)).job, message.run)
            self._committed[of_job] = max(self._committed.get(of_job, 0), durable)
            rows = [
                store.is_durable((CheckpointRecord, message.run, message.step, rank))
                for rank in range(self.world.rules.world_size)
            ]
            # One write may hold a commit in memory and, behind it, two newer ones, by which it is history.
            were_held = (CheckpointState.COMMITTED, CheckpointState.RETIRED)
            assert all(row is not None and row.state in were_held for row in rows), (
                f"I5: {message} before it is written"
            )

    def finished(self) -> None:
        """I9: the newest step that every rank has published is committed when the job has finished."""
        self.checked["I9"] += 1
        assert self.world.store.job is not None, "it has finished"
        job, run = self.world.store.job.job, self.world.store.job.run
        holders = [
            row
            for row in self.world.store.all(NodeRecord)
            if row.role is m.Role.WORKER and row.rank is not None
        ]
        disks = [
            {
                step: file.held
                for step, file in self.world.disk[row.node_id].items()
                if file.rank == row.rank
                # What a job has left that was forgotten with a lost store is none of this one's.
                and (file.job, file.held.run) == (job, run)
                # Whoever looks passes over what is gone or cut short.
                and not (file.gone or file.fault or file.held.digest in self._bad)
                and self.is_past(file.held)
            }
            for row in holders
        ]
        common = set.intersection(*(set(disk) for disk in disks))
        committed = [
            row.step
            for row in self.world.store.all(CheckpointRecord)
            if row.run == run
            and row.rank == 0
            and row.state is CheckpointState.COMMITTED
            and self.is_past(row)
        ]
        newest = max(common, default=0)
        assert max(committed, default=0) >= newest, (
            f"I9: the job finished, all ranks hold step {newest}, and {max(committed, default=0)} is committed"
        )

    # --- the workers ---------------------------------------------------------------------------------------------------

    def may_end_well(self, process: Process) -> bool:
        """Has the job finished? Or failed alone since what all ranks held of its last step was damaged, while this rank was done and cut off?

        A rank that is done and hears no scheduler for MS_TOPO_TIMEOUT ends well where all ranks hold its last step. Of what became of the
        files since, and of its job for want of them, it cannot know.
        """
        world, admitted = self.world, process.machine.admitted
        if "finished" in world.outcomes:
            return True
        is_cut_off = process.wire is None and world.verdict == "NO_COMMON_CHECKPOINT"
        if not is_cut_off or process.phase != "done" or admitted is None:
            return False
        held = self._committed.get((admitted.job, admitted.run), 0) >= process.step
        rows = [row for row in world.store.all(CheckpointRecord) if row.step == process.step]
        of_run = [(row, world.disk.file_at(row.path)) for row in rows if row.run == admitted.run]
        damaged = any(
            file is None or file.gone or file.fault or not file.good or file.rank != row.rank
            for row, file in of_run
        )
        world.clock.seen["a rank ended well whose last step was damaged for its job"] += held and damaged
        return held and damaged

    def plan_received(self, process: Process, plan: m.Rollback) -> None:
        """I1, I8: one process per rank and generation, and it holds the file it is sent to."""
        admitted = process.machine.admitted
        assert admitted is not None, "a plan is for members"
        if self.is_fenced(process, plan) or (self._is_overtaken(plan) and process.frozen_until):
            # Also where a store was lost meanwhile, so that its successor has the same incarnation.
            self.world.clock.seen["a fenced incarnation woke up to an old plan"] += 1
            self._left_behind.add(process)
            return
        self.checked["I8"] += 1
        newest = max(self._newest_of(process.name, plan), admitted.incarnation)
        self._newest_incarnation[process.name] = newest, (plan.run, plan.generation)
        received = self._received.setdefault((plan.run, plan.generation), {})
        assert plan.rank not in received, (
            f"I1: rank {plan.rank} was entered twice in generation {plan.generation}"
        )
        received[plan.rank] = process
        self._left_behind.discard(process)
        if process in self._unheard:
            # The store was lost once more, and now its world is the one that is found: what it has trained is what counts.
            self._unheard.discard(process)
            self.world.clock.seen["a world that had been left behind was found again"] += 1
            self._applied[plan.job, plan.rank] = list(range(1, plan.step + 1))
        self.world.exchange.plan_received(process, plan)
        if plan.step and plan.live_rank is None:
            assert self.world.disk.file_at(plan.path) is not None, (
                f"I8: {process.name} was sent to a file that it does not hold: {plan.path}"
            )
            self.slots.sent_to(process, plan)
            if tier_of(plan.path) is Tier.MEMORY:
                self.world.clock.seen["a plan went to a step in memory"] += 1

    def _is_overtaken(self, plan: m.Rollback) -> bool:
        """Has somebody received a newer one?"""
        return any(key > (plan.run, plan.generation) for key in self._received)

    def is_fenced(self, process: Process, received: m.Rollback | None = None) -> bool:
        """Has a newer incarnation of its id been admitted, or another node its rank?

        Args:
            process: which.
            received: a plan that it does not follow yet.
        """
        row = self.world.store.rows.get((NodeRecord, process.name))
        admitted = process.machine.admitted
        if row is None or admitted is None:
            return True
        plan = received or process.plan
        newest: int = max(row.incarnation, self._newest_of(process.name, plan))
        # A lost store's numbers of incarnations are given again: then the plan tells which process of an id is the newer one.
        return (
            newest > admitted.incarnation
            or self.slots.lost_its_slot(process, plan)
            or any(
                one.name == process.name and one is not process and _is_of_newer_plan(one.plan, plan)
                for one in self.world.living
            )
        )

    def _newest_of(self, name: str, plan: m.Rollback | None) -> int:
        """The newest incarnation of an id, as far as it says something to one that follows this plan."""
        newest, received = self._newest_incarnation.get(name, (0, (0, 0)))
        is_forgotten = plan is not None and received < self._rebuilt_from <= (plan.run, plan.generation)
        return 0 if is_forgotten else newest

    def loaded(self, process: Process, plan: m.Rollback, content: Content) -> None:
        """I8, I20: all ranks load one history, and it leads to the target without a gap."""
        if process in self._left_behind:
            # What a world loads that nobody can reach is no world's that counts.
            return
        self.checked["I20"] += 1
        known = self._histories.setdefault((plan.run, plan.generation), content)
        assert known == content, f"I20: ranks with different histories train together: {known} {content}"

    def stepped(self, process: Process, plan: m.Rollback, step: int) -> None:
        """I10: without what was rolled back, the steps of a rank are 1, 2, 3, ..."""
        self.checked["I10"] += 1
        now = (plan.run, plan.generation)
        applied = self._applied.setdefault((plan.job, plan.rank), [])
        before = self._applied_in.get((plan.job, plan.rank), (0, 0))
        if process in self._left_behind or (now < before and self.is_fenced(process)):
            self.world.clock.seen[
                "a world that nobody could reach trained on after its slots were taken"
            ] += 1
            # Its files are of a history that was left: nobody goes back to them.
            of = (plan.job, plan.rank)
            self._uncounted[of] = max(step, self._uncounted.get(of, 0))
            return
        if now != before:
            assert now > before, f"I10: rank {plan.rank} stepped in generation {now} after {before}"
            # Of whom no step has counted before, there are only those that a world has done which was left behind and is found again.
            if before[0] not in (0, plan.run):
                applied.clear()
            del applied[plan.step :]
            if plan.live_rank is not None:
                # It has taken what others did of them.
                applied.extend(range(len(applied) + 1, plan.step + 1))
            self._applied_in[plan.job, plan.rank] = now
        assert step == len(applied) + 1, f"I10: rank {plan.rank} did step {step} after {len(applied)}"
        applied.append(step)

    def deleted(self, process: Process, step: int) -> None:
        """I11: retention took away the file of a step."""
        self.checked["I11"] += 1
        run = process.plan.run if process.plan is not None else 0
        of_run = [row for row in self.world.store.all(CheckpointRecord) if row.run == run]
        in_memory = {row.step for row in of_run if tier_of(row.path) is Tier.MEMORY}
        # A rank that fetches a plan's step may hold it and not have said so: its own store is slow.
        others = (CheckpointState.COMMITTED, CheckpointState.FETCHING)
        missing = {row.step for row in of_run if row.state not in others}
        known = {row.step for row in of_run if row.state is CheckpointState.COMMITTED and self.is_past(row)}
        committed = sorted(known - in_memory - missing)
        assert step not in committed[-2:], (
            f"I11: {process.name} deleted step {step}, committed are {committed}"
        )


def _is_of_newer_plan(plan: m.Rollback | None, other: m.Rollback | None) -> bool:
    return (
        plan is not None and other is not None and (plan.run, plan.generation) > (other.run, other.generation)
    )


def _happened(effects: list[SchedulerEffect], name: str) -> set[EventKind]:
    """What is written of a node."""
    records = (record for effect in effects if isinstance(effect, Persist) for record in effect.records)
    return {one.kind for one in records if isinstance(one, EventRecord) and one.node_id == name}


def _rebuilt(effects: list[SchedulerEffect]) -> bool:
    records = (record for effect in effects if isinstance(effect, Persist) for record in effect.records)
    return any(isinstance(one, EventRecord) and one.kind is EventKind.STORE_REBUILT for one in records)


def state_of(scheduler: SchedulerProcess) -> Any:
    """Everything that a message without effect must leave alone, but for when a node was heard."""
    known = scheduler.machine.state
    return (
        msgspec.structs.astuple(known.job),
        known.checkpoints.committed_step,
        tuple(
            (
                msgspec.structs.astuple(node.record),
                node.connection,
                node.suspect_until_ms,
                node.window_ends_ms,
                node.done,
                node.sent_generation,
                node.ready,
            )
            for node in known.nodes.values()
        ),
    )
