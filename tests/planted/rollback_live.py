"""Bugs in live rollback: whose memory a plan goes to, and when it goes to nobody's."""

from __future__ import annotations

from tests.planted.bug import Bug

_POLICY = "tests/core/test_live_policy.py"
_SCHEDULER = "tests/core/test_live_rollback.py"
_RESTART = "tests/core/test_live_restart.py"
_WORKER = "tests/core/test_live_worker.py"
_SHARDS = "tests/core/test_live_shards.py"
_SIMULATED = "tests/simulation/test_live.py::test_what_survives_in_memory_breaks_no_promise"
_NEWEST = f"{_POLICY}::test_the_newest_state_wins_and_of_several_the_lowest_rank_gives_it"

ROLLBACK_LIVE = (
    Bug(
        "the older of two states in memory is chosen",
        "I30",
        "core/policy/live.py",
        "choose",
        "sorted({state.step for state in of_lineage.values()}, reverse=True)",
        "sorted({state.step for state in of_lineage.values()})",
        (_NEWEST,),
    ),
    Bug(
        "of several ranks with one state the highest gives it",
        "I30",
        "core/policy/live.py",
        "_sources",
        "sorted(holders)",
        "sorted(holders, reverse=True)",
        (_NEWEST,),
    ),
    Bug(
        "a state in memory that was rolled back is gone on from",
        "I20",
        "core/policy/live.py",
        "choose",
        "rollback.in_lineage((state,), generations)",
        "generations",
        (f"{_SCHEDULER}::test_a_state_of_a_rolled_back_suffix_is_no_candidate",),
    ),
    Bug(
        "a checkpoint that is newer than what is in memory is ignored",
        "I30",
        "core/policy/live.py",
        "choose",
        "state.step > newer_than",
        "state.step > 0",
        (f"{_SCHEDULER}::test_a_checkpoint_that_is_as_new_is_gone_back_to",),
    ),
    Bug(
        "a state in memory that was refused is tried again",
        "I14",
        "core/policy/live.py",
        "choose",
        "state.step not in refused",
        "state.step not in ()",
        (f"{_SCHEDULER}::test_a_source_that_fails_costs_its_step_and_then_the_checkpoint_is_left",),
    ),
    Bug(
        "the plan of a job that forms goes to a rank's memory",
        "I30",
        "core/scheduler/live.py",
        "target",
        "not state.rules.live_rollback or state.job.state is not JobState.INTERRUPTED",
        "not state.rules.live_rollback",
        (f"{_SCHEDULER}::test_a_job_that_forms_goes_to_nobodys_memory",),
    ),
    Bug(
        "a state in memory is gone on from although nobody has asked for that",
        "I9",
        "core/scheduler/live.py",
        "target",
        "not state.rules.live_rollback or state.job.state is not JobState.INTERRUPTED",
        "state.job.state is not JobState.INTERRUPTED",
        (f"{_SCHEDULER}::test_nobody_is_asked_for_its_memory_unless_it_is_asked_for",),
    ),
    Bug(
        "a state in memory of another run is gone on from",
        "I30",
        "core/scheduler/live.py",
        "_states",
        "node.ready.live.run == state.job.run",
        "node.ready.live.run",
        (f"{_SCHEDULER}::test_a_state_of_another_run_is_no_candidate",),
    ),
    Bug(
        "what a worker has of another job is offered",
        "I30",
        "core/worker/plans.py",
        "Plans.on_checkpoints_found",
        "stopped is not None and self.memory.job != self.admitted.job",
        "stopped is not None and not self.memory.job",
        (f"{_WORKER}::test_what_it_has_of_another_job_is_not_offered",),
    ),
    Bug(
        "a step that was refused once is refused when it is trained again",
        "I30",
        "core/scheduler/live_state.py",
        "LiveRollback.begin",
        "self.refused = {one for one in self.refused if one <= step}",
        "",
        (f"{_SCHEDULER}::test_a_step_that_was_refused_and_is_trained_again_is_gone_on_from",),
    ),
    Bug(
        "what goes on from memory counts as committed",
        "I11",
        "core/scheduler/generations.py",
        "_begin",
        "of_memory is None",
        "True",
        (f"{_SCHEDULER}::test_all_go_on_from_the_memory_that_is_furthest",),
    ),
    Bug(
        "a plan to a rank's memory counts as proof that there was a checkpoint",
        "I11",
        "core/checkpoints.py",
        "CheckpointCoordinator.load",
        "one.step and one.step not in in_memory and one.generation not in live",
        "one.step and one.step not in in_memory",
        (
            f"{_RESTART}::test_a_job_without_any_checkpoint_begins_again_when_all_memory_is_lost_behind_a_restart",
        ),
    ),
    Bug(
        "a plan goes to a step of which nobody has one part",
        "I30",
        "core/policy/live.py",
        "choose",
        "_takers(sources, world_size) == list(range(world_size))",
        "sources",
        (f"{_SHARDS}::test_no_step_that_each_part_has_leaves_the_checkpoint_and_says_whose_part_is_missing",),
    ),
    Bug(
        "in the simulation, a plan goes to a step of which nobody has one part",
        "I30",
        "core/policy/live.py",
        "choose",
        "_takers(sources, world_size) == list(range(world_size))",
        "len(sources) > 0",
        (f"{_SIMULATED}[shards]",),
    ),
    Bug(
        "a rank gives a part that it says others have",
        "I30",
        "core/policy/live.py",
        "_sources",
        "not replicas or rank in replicas",
        "True",
        (f"{_POLICY}::test_a_rank_that_is_not_among_those_it_names_gives_nothing",),
    ),
)
