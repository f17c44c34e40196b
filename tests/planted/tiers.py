"""Bugs where tiers, copies and a lost store meet: a job is started over, or damage is not looked for."""

from __future__ import annotations

from tests.planted.bug import Bug

_AUDIT = "tests/report/test_audit.py"
_STEPS = "tests/core/test_memory_steps.py"

TIERS = (
    Bug(
        "a plan that went to memory proves what lies on disks",
        "I9",
        "core/policy/rebuild.py",
        "any(one.step and one.step not in in_memory for one in generations)",
        "any(one.step for one in generations)",
        (
            "tests/core/test_rebuild_policy.py::test_a_plan_that_went_to_memory_does_not_hide_what_was_saved_on_disks",
        ),
    ),
    Bug(
        "a worker says to another job what it said to its own",
        "I9",
        "core/worker/machine.py",
        "        self._checkpoints.joined()\n",
        "",
        ("tests/core/test_worker_machine.py::test_what_it_said_to_another_job_is_not_said_again",),
    ),
    Bug(
        "what all disks are found to hold behind a plan to memory is not promised",
        "I9",
        "core/checkpoints.py",
        "        self._ever_committed = self._ever_committed or self.durable_step > 0\n",
        "        self._ever_committed = self._ever_committed or is_durable\n",
        (f"{_STEPS}::test_what_all_disks_are_found_to_hold_is_worth_failing_for_behind_a_plan_to_memory",),
    ),
    Bug(
        "who is offered a rank says nothing of the copies at its place",
        "I27",
        "worker/executor.py",
        "copies = await self._find_copies(find.job, find.run, find.rank, found.held)",
        "copies = await self._find_copies(find.job, find.run, find.rank, found.held) if find.offer is None else ()",
        ("tests/faults/test_lost_disks.py::test_copies_count_whose_holder_comes_back_under_a_fresh_id",),
    ),
    Bug(
        "a rebuilt store knows no copies",
        "I27",
        "core/scheduler/lost_store.py",
        "    rows += _take_up_copies(state, pasts)\n",
        "",
        ("tests/core/test_copies_found_again.py::test_copies_of_a_job_whose_store_is_lost_are_taken_up",),
    ),
    Bug(
        "copies of a place stay those of an id that has it no more",
        "I19",
        "core/scheduler/checkpoint_messages.py",
        "                rows += state.copies.replace(name, (), reason)\n",
        "                rows += ()\n",
        (
            "tests/core/test_copies_found_again.py::test_copies_of_a_place_are_those_of_the_fresh_id_that_has_it",
        ),
    ),
    Bug(
        "what a living process writes is taken for left over",
        "I11",
        "checkpoint/leftovers.py",
        ' and _is_gone(int(match["pid"]))',
        "",
        ("tests/checkpoint/test_leftovers.py::test_what_a_living_process_writes_stays",),
    ),
    Bug(
        "the manifest that says whose a file is goes as left over",
        "I11",
        "checkpoint/leftovers.py",
        ' or match["name"].endswith(names.MANIFEST_SUFFIX)',
        "",
        ("tests/checkpoint/test_leftovers.py::test_what_is_not_of_these_saves_stays",),
    ),
    Bug(
        "copies are not verified",
        "I19",
        "report/audit.py",
        '.glob("*.copies/*/run-*/rank-*"))',
        '.glob("*.other/*/run-*/rank-*"))',
        ("tests/report/test_audit.py::test_a_copy_that_nobody_has_reported_is_looked_at",),
    ),
    Bug(
        "a directory that is gone is taken for one on another host",
        "I19",
        "report/audit.py",
        "local = {host for host in {node.host for node in stored.nodes} if is_local(host)}",
        "local: set[str] = set()",
        (f"{_AUDIT}::test_damage_and_loss_are_findings",),
    ),
    Bug(
        "one rank's manifest of a folder vouches for all",
        "I19",
        "report/audit.py",
        'seen.add((f"{folder}/", rank))',
        'seen.add((f"{folder}/", None))',
        (f"{_AUDIT}::test_of_a_folder_each_rank_needs_its_own_manifest",),
    ),
    Bug(
        "a checkpoint shows copies of another one of its step",
        "I19",
        "report/tables.py",
        "holders.get((one.run, one.step, one.rank, one.digest), ())",
        "next((who for key, who in holders.items() if key[:3] == (one.run, one.step, one.rank)), ())",
        ("tests/report/test_copies_shown.py::test_a_copy_of_another_history_is_not_shown",),
    ),
)
