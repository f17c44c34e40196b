"""Bugs in copies: who holds them, when they are made and let go, where a plan goes by them, what a worker fetches."""

from __future__ import annotations

from tests.planted.bug import Bug

_COPIES = "tests/core/test_copies.py"
_PLANS = "tests/core/test_plans_with_copies.py"
_POLICY = "tests/core/test_copies_policy.py"
_WORKER = "tests/core/test_worker_copies.py"

HELD_COPIES = (
    Bug(
        "a copy goes to its owner's own host",
        "I27",
        "core/policy/copies.py",
        "holders",
        "range(1, copies + 1)",
        "range(copies)",
        (f"{_POLICY}::test_every_copy_is_on_another_host_and_no_two_are_on_one",),
    ),
    Bug(
        "copies of a rolled-back suffix are kept",
        "I29",
        "core/policy/retention.py",
        "copy_is_needed",
        "copy.step >= kept_from and not rolled_back",
        "copy.step >= kept_from",
        (f"{_POLICY}::test_which_copies_a_plan_can_still_go_to",),
    ),
    Bug(
        "a newer step is copied beside the one that is being copied",
        "I17",
        "core/scheduler/checkpoints/copying.py",
        "order",
        "(copying.due or copying.due_in_memory) and not copying.step and all_are_here(state)",
        "(copying.due or copying.due_in_memory) and all_are_here(state)",
        (f"{_COPIES}::test_while_a_step_is_copied_only_the_newest_committed_one_waits",),
    ),
    Bug(
        "a step whose copy was given up counts as copied",
        "I27",
        "core/scheduler/checkpoints/copying.py",
        "_complete",
        "if failed:\n    return [], ()",
        "",
        (f"{_COPIES}::test_a_copy_that_is_given_up_is_an_event_and_the_next_step_is_copied",),
    ),
    Bug(
        "holders let go while a plan is made",
        "I29",
        "core/scheduler/checkpoints/copying.py",
        "_complete",
        "state.job.state is not JobState.RUNNING",
        "False",
        (f"{_COPIES}::test_copies_that_are_complete_when_a_plan_is_made_are_noted_and_nobody_lets_go",),
    ),
    Bug(
        "a holder that did not answer is named for ever",
        "I14",
        "core/scheduler/checkpoints/reports.py",
        "_of_plan",
        "state.copying.not_given |= {(fault.source.address, failed.digest) for fault in failed.failures}",
        "_ = {(fault.source.address, failed.digest) for fault in failed.failures}",
        (f"{_PLANS}::test_a_holder_that_does_not_answer_is_not_named_again_until_it_has_another_address",),
    ),
    Bug(
        "a damaged copy is offered again by its holder's next look",
        "I28",
        "core/copy_index.py",
        "CopyIndex.reject",
        "self._damaged.add((node_id, rank, held.digest))",
        "",
        (f"{_POLICY}::test_a_copy_that_was_damaged_counts_again_when_it_was_made_again",),
    ),
    Bug(
        "a rank counts as holding what it has yet to fetch",
        "I5",
        "core/scheduler/generations/change.py",
        "_row_of",
        "state.copying.fetching",
        "()",
        (f"{_PLANS}::test_a_rank_on_an_empty_disk_is_sent_to_who_holds_its_copy",),
    ),
    Bug(
        "who has not said what it holds is named as a holder",
        "I27",
        "core/scheduler/checkpoints/copying.py",
        "holders_here",
        "where is not None and has_said and (where.address, digest) not in state.copying.not_given",
        "where is not None and (where.address, digest) not in state.copying.not_given",
        (f"{_PLANS}::test_a_holder_that_has_not_said_what_it_holds_is_not_named",),
    ),
    Bug(
        "the main thread is given a plan before its file lies here",
        "I8",
        "core/worker/plans.py",
        "Plans._follow",
        "not plan.sources",
        "True",
        (f"{_WORKER}::test_a_plan_that_names_sources_is_followed_when_its_file_lies_here",),
    ),
    Bug(
        "what was fetched for a plan that is over is trained from",
        "I20",
        "core/worker/fetches.py",
        "Fetches.ends",
        "self.forget_plan()",
        "",
        (f"{_WORKER}::test_what_comes_for_a_plan_that_is_over_is_not_followed",),
    ),
    Bug(
        "the file that others hold is deleted by its owner",
        "I11",
        "core/policy/retention.py",
        "removable",
        "step < previous_durable_step and step not in pinned",
        "step < previous_durable_step",
        ("tests/core/test_retention.py::test_what_lies_on_other_hosts_stays_on_its_owners_disk",),
    ),
)
