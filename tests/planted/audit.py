"""Bugs in what `recovery verify` looks at: damage and loss that it does not name."""

from __future__ import annotations

from tests.planted.bug import Bug

_AUDIT = "tests/report/test_audit.py"

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
        'seen.add((f"{folder}/", rank))\ntry:\n    verify.check(folder, rank=rank)\n'
        "except CheckpointError as error:\n    yield Finding(path=str(folder), what=str(error))",
        'seen.add((f"{folder}/", None))\ntry:\n    verify.check(folder, rank=rank)\n'
        "except CheckpointError as error:\n    yield Finding(path=str(folder), what=str(error))",
        (f"{_AUDIT}::test_of_a_folder_each_rank_needs_its_own_manifest",),
    ),
)
