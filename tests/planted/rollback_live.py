"""Bugs in live rollback: whose memory a plan goes to, and what all compare before anybody trains on."""

from __future__ import annotations

from tests.planted.bug import Bug

_POLICY = "tests/core/test_live_policy.py"
_SCHEDULER = "tests/core/test_live_rollback.py"
_RESTART = "tests/core/test_live_restart.py"
_WORKER = "tests/core/test_live_worker.py"
_SIMULATED = "tests/simulation/test_live.py::test_what_survives_in_memory_breaks_no_promise"
_NEWEST = f"{_POLICY}::test_the_newest_state_wins_and_of_several_the_lowest_rank_gives_it"

WHOSE = (
    Bug(
        "the older of two states in memory is chosen",
        "I30",
        "core/policy/live.py",
        "of_lineage.values()}, reverse=True)",
        "of_lineage.values()}, reverse=False)",
        (_NEWEST,),
    ),
    Bug(
        "of several ranks with one state the highest gives it",
        "I30",
        "core/policy/live.py",
        "for rank in sorted(holders):",
        "for rank in sorted(holders, reverse=True):",
        (_NEWEST,),
    ),
    Bug(
        "a state in memory that was rolled back is gone on from",
        "I20",
        "core/policy/live.py",
        "if rollback.in_lineage((state,), generations)\n",
        "if generations\n",
        (f"{_SCHEDULER}::test_a_state_of_a_rolled_back_suffix_is_no_candidate",),
    ),
    Bug(
        "a checkpoint that is newer than what is in memory is ignored",
        "I30",
        "core/policy/live.py",
        "and state.step > newer_than",
        "and state.step > 0",
        (f"{_SCHEDULER}::test_a_checkpoint_that_is_as_new_is_gone_back_to",),
    ),
    Bug(
        "a state in memory that was refused is tried again",
        "I14",
        "core/policy/live.py",
        "        and state.step not in refused\n",
        "",
        (f"{_SCHEDULER}::test_a_source_that_fails_costs_its_step_and_then_the_checkpoint_is_left",),
    ),
    Bug(
        "the plan of a job that forms goes to a rank's memory",
        "I30",
        "core/scheduler/live.py",
        "state.job.state is not JobState.INTERRUPTED:\n        # While",
        "state.job.generation < 0:\n        # While",
        (f"{_SCHEDULER}::test_a_job_that_forms_goes_to_nobodys_memory",),
    ),
    Bug(
        "a state in memory is gone on from although nobody has asked for that",
        "I9",
        "core/scheduler/live.py",
        "if not state.rules.live_rollback or state.job.state is not JobState.INTERRUPTED:\n        # While",
        "if state.job.state is not JobState.INTERRUPTED:\n        # While",
        (f"{_SCHEDULER}::test_nobody_is_asked_for_its_memory_unless_it_is_asked_for",),
    ),
    Bug(
        "a state in memory of another run is gone on from",
        "I30",
        "core/scheduler/live.py",
        "        if node.ready.live.run == state.job.run\n",
        "",
        (f"{_SCHEDULER}::test_a_state_of_another_run_is_no_candidate",),
    ),
    Bug(
        "what a worker has of another job is offered",
        "I30",
        "core/worker/plans.py",
        "if stopped is not None and self.memory.job != self.admitted.job:",
        "if stopped is not None and not self.memory.job:",
        (f"{_WORKER}::test_what_it_has_of_another_job_is_not_offered",),
    ),
    Bug(
        "a step that was refused once is refused when it is trained again",
        "I30",
        "core/scheduler/live_state.py",
        "self.refused = {one for one in self.refused if one <= step}",
        "assert step >= 0",
        (f"{_SCHEDULER}::test_a_step_that_was_refused_and_is_trained_again_is_gone_on_from",),
    ),
    Bug(
        "what goes on from memory counts as committed",
        "I11",
        "core/scheduler/generations.py",
        "is_stored=of_memory is None",
        "is_stored=True",
        (f"{_SCHEDULER}::test_all_go_on_from_the_memory_that_is_furthest",),
    ),
)

COMPARED = (
    Bug(
        "the ranks may begin before the last has said what it took",
        "I31",
        "core/scheduler/live.py",
        "len(state.live.spoken) < state.rules.world_size:",
        "len(state.live.spoken) < state.rules.world_size - 1:",
        (f"{_SCHEDULER}::test_all_may_begin_once_the_last_has_said_the_same",),
    ),
    Bug(
        "ranks that took different states train on",
        "I31",
        "core/scheduler/live.py",
        "if content == loaded.content:",
        "if content:",
        (f"{_SCHEDULER}::test_different_contents_interrupt_the_generation",),
    ),
    Bug(
        "in the simulation, ranks that took different states train on",
        "I31",
        "core/scheduler/live.py",
        "if content == loaded.content:",
        "if content is not None:",
        (f"{_SIMULATED}[drains]",),
    ),
    Bug(
        "a state that was not the same everywhere is given again",
        "I31",
        "core/scheduler/live.py",
        "    state.live.refused.add(loaded.step)\n",
        "",
        (f"{_SCHEDULER}::test_different_contents_interrupt_the_generation",),
    ),
    Bug(
        "what could not be given is asked for again",
        "I14",
        "core/scheduler/live.py",
        "    state.live.refused.add(bad.step)\n",
        "",
        (f"{_SCHEDULER}::test_a_source_that_fails_costs_its_step_and_then_the_checkpoint_is_left",),
    ),
    Bug(
        "what was taken in the generation before counts in the next one",
        "I31",
        "core/scheduler/live_state.py",
        "        self.spoken.clear()\n",
        "",
        (f"{_SCHEDULER}::test_what_was_taken_before_counts_in_no_later_generation",),
    ),
    Bug(
        "who has not heard that all agree is not told when it asks again",
        "I14",
        "core/scheduler/live.py",
        "to = [node] if was_known else state.workers",
        "to = [] if was_known else state.workers",
        (f"{_SCHEDULER}::test_who_says_it_again_has_not_heard_the_answer_and_hears_it_alone",),
    ),
    Bug(
        "what was taken is not said again after a reconnect",
        "I14",
        "core/worker/main_thread.py",
        "if self._loaded is not None and self._loaded.content and self.in_generation:",
        "if self._loaded is not None and self._loaded.content and not self.in_generation:",
        (f"{_WORKER}::test_after_a_reconnect_it_says_again_what_it_has_taken",),
    ),
    Bug(
        "who has left its generation begins it when all agree",
        "I12",
        "core/worker/main_thread.py",
        "is_current = agreed.generation == self._generation and self.in_generation",
        "is_current = agreed.generation == self._generation",
        (f"{_WORKER}::test_who_has_left_its_generation_does_not_begin_it",),
    ),
    Bug(
        "what is agreed on in another generation lets a rank begin",
        "I12",
        "core/worker/main_thread.py",
        "is_current = agreed.generation == self._generation and self.in_generation",
        "is_current = self.in_generation",
        (f"{_WORKER}::test_what_is_agreed_on_in_another_generation_lets_nobody_begin",),
    ),
)

RESTARTS = (
    Bug(
        "where the state of a plan is, is not written",
        "I5",
        "core/scheduler/live.py",
        "return [_row(plan, source) for source in sources]",
        "return []",
        (f"{_RESTART}::test_a_restarted_scheduler_sends_the_same_plan_and_asks_all_again",),
    ),
    Bug(
        "a restarted scheduler does not know where the state of its plan is",
        "I30",
        "core/scheduler/restore.py",
        "if row.generation == state.job.generation))",
        "if row.generation < state.job.generation))",
        (f"{_RESTART}::test_a_restarted_scheduler_sends_the_same_plan_and_asks_all_again",),
    ),
    Bug(
        "the scheduler's process does not hand the stored sources to its machine",
        "I30",
        "scheduler/startup.py",
        "            live_sources=state.all_live_sources,\n",
        "",
        (
            "tests/scheduler/test_rebuild.py::test_a_machine_knows_again_in_whose_memory_its_newest_plan_found_the_state",
        ),
    ),
    Bug(
        "a source that failed has its answer before its generation has ended",
        "I14",
        "core/scheduler/checkpoint_messages.py",
        "[*generations.interrupt(state, why, now_ms), state.answer(node, bad.request_id, noted)]",
        "[state.answer(node, bad.request_id, records), *generations.interrupt(state, why, now_ms)]",
        (f"{_SCHEDULER}::test_nobody_hears_that_its_failure_is_known_before_its_generation_has_ended",),
    ),
)

_KIND = "tests/cluster/test_live_kinds.py::test_no_step_is_lost[{}]"
BUFFERS = (
    Bug(
        "a look behind callbacks takes what was sent for the step before",
        "I30",
        "torch/mirrored_buffers.py",
        "elif self._has_turned:\n            self._look_behind_callbacks(now, kept)",
        "elif self._has_turned:\n            self._turn(now, kept)",
        (_KIND.format("statistics"),),
    ),
    Bug(
        "what a callback changes in rank 0's buffers is not kept",
        "I30",
        "torch/mirrored_buffers.py",
        "            self._keep(now, kept, changed)\n",
        "            pass\n",
        (_KIND.format("changed_by_a_callback"),),
    ),
    Bug(
        "nobody hears that rank 0 has seen another buffer change",
        "I30",
        "torch/mirrored_buffers.py",
        "        if self._asked:\n            self._settled,",
        "        if self._asked and not self._settled:\n            self._settled,",
        (_KIND.format("two_models"),),
    ),
    Bug(
        "what was voted on is not given to the next generation",
        "I30",
        "torch/live_memory.py",
        'self._bind(new, mirrored=tree["mirrored"])',
        "self._bind(new, mirrored={})",
        (
            "tests/faults/test_live_events.py::test_a_kill_costs_no_step_where_a_survivor_is_whole[first-step]",
        ),
    ),
)

_SHARDS = "tests/core/test_live_shards.py"
_PARTS = "tests/torch/test_live_shards.py"
SHARDS = (
    Bug(
        "a plan to a rank's memory counts as proof that there was a checkpoint",
        "I11",
        "core/checkpoints.py",
        " and one.generation not in live for one",
        " for one",
        (
            f"{_RESTART}::test_a_job_without_any_checkpoint_begins_again_when_all_memory_is_lost_behind_a_restart",
        ),
    ),
    Bug(
        "a plan goes to a step of which nobody has one part",
        "I30",
        "core/policy/live.py",
        "if _takers(sources, world_size) == list(range(world_size)):",
        "if sources:",
        (f"{_SHARDS}::test_no_step_that_each_part_has_leaves_the_checkpoint_and_says_whose_part_is_missing",),
    ),
    Bug(
        "in the simulation, a plan goes to a step of which nobody has one part",
        "I30",
        "core/policy/live.py",
        "if _takers(sources, world_size) == list(range(world_size)):",
        "if sources and len(sources) > 0:",
        (f"{_SIMULATED}[shards]",),
    ),
    Bug(
        "a rank gives a part that it says others have",
        "I30",
        "core/policy/live.py",
        "        if not replicas or rank in replicas\n",
        "",
        (f"{_POLICY}::test_a_rank_that_is_not_among_those_it_names_gives_nothing",),
    ),
    Bug(
        "all ranks are sent to the source of the first part",
        "I31",
        "core/scheduler/live_state.py",
        "if self._of_rank or not self.sources:",
        "if not self.sources:",
        (f"{_SHARDS}::test_each_rank_is_sent_to_the_lowest_survivor_that_has_its_part",),
    ),
    Bug(
        "what ranks hold of different parts is compared",
        "I31",
        "core/scheduler/live.py",
        "state.live.firsts.setdefault(source.rank, (",
        "state.live.firsts.setdefault(state.live.sources[0].rank, (",
        (f"{_SHARDS}::test_what_replicas_have_taken_is_compared_and_what_others_have_is_not",),
    ),
    Bug(
        "a scheduler that starts again forgets who takes from whom",
        "I31",
        "core/scheduler/live.py",
        'row.structure, tuple(Rank(int(one)) for one in row.replicas.split(",")))',
        "row.structure)",
        (f"{_SHARDS}::test_a_restarted_scheduler_sends_each_rank_to_the_same_source",),
    ),
    Bug(
        "a rank counts as a replica that holds the same of one tensor only",
        "I30",
        "torch/live_shards.py",
        "found & alike",
        "found | alike",
        (f"{_PARTS}::test_of_two_tensors_the_ranks_count_that_hold_both",),
    ),
    Bug(
        "what an optimizer keeps of a spread parameter comes back as this rank's part",
        "I9",
        "torch/live_content.py",
        "        if parts:\n            kept[trained[place]]",
        "        if not parts:\n            kept[trained[place]]",
        (f"{_PARTS}::test_a_part_goes_into_a_tensor_of_the_next_world",),
    ),
    Bug(
        "gradients of one rank alone are given",
        "I30",
        "torch/live_memory.py",
        "if self.replicas and (name := self._parts.unreduced()):",
        "if not self.replicas and (name := self._parts.unreduced()):",
        (f"{_PARTS}::test_gradients_that_were_not_added_over_the_ranks_cannot_be_given",),
    ),
    Bug(
        "a module that was left in its forward pass counts as another one",
        "I30",
        "torch/live_shards.py",
        "        module.state_dict()\n",
        "        pass\n",
        (f"{_PARTS}::test_a_module_that_was_left_in_its_forward_pass_has_its_parts_again",),
    ),
    Bug(
        "a world is broken by ending what is sent as well",
        "I14",
        "torch/sockets.py",
        "opened.shutdown(socket.SHUT_RD)",
        "opened.shutdown(socket.SHUT_RDWR)",
        (
            "tests/torch/test_process_group.py::test_shutting_down_spares_listeners_pipes_and_what_is_not_named",
        ),
    ),
    Bug(
        "the peers of a world that was broken see its sockets close",
        "I14",
        "torch/sockets.py",
        "        self._held[inode] = opened\n",
        "        opened.close()\n",
        (
            "tests/torch/test_process_group.py::test_the_peer_of_a_socket_that_was_ended_does_not_notice_before_it_is_let_go_of",
        ),
    ),
    Bug(
        "parts of another size have the same structure",
        "I30",
        "torch/live_shards.py",
        'return f" {tuple(local(tensor).shape)} by',
        'return f" by',
        (f"{_PARTS}::test_parts_of_another_size_have_another_structure",),
    ),
    Bug(
        "what was built on the mesh of a world that is over is kept",
        "I9",
        "training/live_rollback.py",
        "        self._let_go_of_meshes()\n",
        "",
        ("tests/cluster/test_live_shards.py::test_what_is_held_twice_costs_no_step[one-kept]",),
    ),
)

ROLLBACK_LIVE = WHOSE + COMPARED + RESTARTS + BUFFERS + SHARDS
