"""Bugs in what `recovery verify` looks at: damage and loss that it does not name, and in what is taken for a loss."""

from __future__ import annotations

from tests.planted.bug import Bug

_AUDIT = "tests/report/test_audit.py"
_WORKERS_ONLY = "tests/report/test_workers_only.py"

AUDIT = (
    Bug(
        "a copy that nobody has reported is not verified",
        "I19",
        "report/audit.py",
        "_directories",
        '"*.copies/*/run-*/rank-*"',
        '"*.other/*/run-*/rank-*"',
        (f"{_AUDIT}::test_a_copy_that_nobody_has_reported_is_looked_at",),
    ),
    Bug(
        "a directory that is gone is taken for one on another host",
        "I19",
        "report/audit.py",
        "_nodes_here",
        "{host for host in {node.host for node in stored.nodes} if is_local(host)}",
        "set[str]()",
        (f"{_AUDIT}::test_damage_and_loss_are_findings",),
    ),
    Bug(
        "one rank's manifest of a folder vouches for all",
        "I19",
        "report/audit.py",
        "_folders",
        'seen.add((f"{folder}/", rank))\nyield from _checked(folder, only, rank)',
        'seen.add((f"{folder}/", None))\nyield from _checked(folder, only, rank)',
        (f"{_AUDIT}::test_of_a_folder_each_rank_needs_its_own_manifest",),
    ),
    Bug(
        "a rest of the scheduler's store does not say that it was here",
        "I19",
        "scheduler/store_rebuild.py",
        "lost_in",
        "None if remains else _scheduler_of(path, pasts)",
        "_scheduler_of(path, pasts)",
        (f"{_WORKERS_ONLY}::test_a_rest_of_the_schedulers_store_says_that_it_was_here",),
    ),
    Bug(
        "a worker of an older plan says where the scheduler is",
        "I19",
        "scheduler/store_rebuild.py",
        "_scheduler_of",
        "sorted(pasts, key=lambda node_id: (pasts[node_id].run, pasts[node_id].generation), reverse=True)",
        "sorted(pasts, key=lambda node_id: (pasts[node_id].run, pasts[node_id].generation))",
        (f"{_WORKERS_ONLY}::test_the_worker_of_the_newest_plan_knows_where_the_scheduler_is",),
    ),
)
