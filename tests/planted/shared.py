"""Bugs in checkpoints that ranks write together."""

from __future__ import annotations

from tests.planted.bug import Bug

SHARED = (
    Bug(
        "a part of another history is mixed in",
        "I8",
        "training/shared_load.py",
        "_checked",
        '(("rank", manifest.rank, rank), ("job", manifest.job, own.job), ("run", manifest.run, own.run), ("step", manifest.step, own.step), ("world_size", manifest.world_size, own.world_size), ("layout", manifest.layout.value, own.layout.value), ("replicated", manifest.replicated[:12], own.replicated[:12]))',
        '(("rank", manifest.rank, rank), ("job", manifest.job, own.job), ("run", manifest.run, own.run), ("step", manifest.step, own.step), ("world_size", manifest.world_size, own.world_size), ("layout", manifest.layout.value, own.layout.value))',
        ("tests/training/test_shared_load.py::test_a_part_of_another_history_is_refused_by_name",),
    ),
    Bug(
        "another rank's damaged part is loaded",
        "I8",
        "training/shared_load.py",
        "_checked",
        "verify.check(other, only=FileRole.PART)",
        "verify.check(other, only=FileRole.STATE)",
        ("tests/training/test_shared_load.py::test_whatever_is_gone_or_changed_is_refused",),
    ),
    Bug(
        "what was put together is not compared with what was saved",
        "I8",
        "torch/shared_state.py",
        "join",
        "fingerprint.joined(fingerprint.of_parts(shared.trees)) != replicated",
        "not replicated",
        (
            "tests/torch/test_shared_state.py::test_parts_that_do_not_belong_together_are_refused_before_anything_is_loaded",
        ),
    ),
    Bug(
        "a shared save is no copy",
        "I20",
        "torch/shared_state.py",
        "SharedPieces.__init__",
        "copied_to_host(mine)",
        "mine",
        ("tests/torch/test_shared_state.py::test_every_rank_gets_its_own_bits_back",),
    ),
    Bug(
        "batch statistics of one rank are given to all",
        "I20",
        "torch/shared_state.py",
        "kept_by_each",
        "part in whole or (part, key) in buffers",
        "part in whole",
        ("tests/torch/test_shared_state.py::test_every_rank_gets_its_own_bits_back",),
    ),
    Bug(
        "a note of an earlier generation counts as seen",
        "I19",
        "training/shared_directory_probe.py",
        "SharedDirectory._sees",
        "found == msgspec.structs.replace(self._note, rank=rank)",
        "found.rank == rank",
        (
            "tests/training/test_shared_directory.py::test_a_note_that_is_not_the_other_ranks_own_of_now_does_not_count",
        ),
    ),
    Bug(
        "one rank writes all that is shared",
        "I17",
        "torch/shared_state.py",
        "owners",
        "loads[rank] += size",
        "",
        (
            "tests/torch/test_shared_plan.py::test_every_storage_has_one_rank_and_none_much_more_than_its_share",
        ),
    ),
    Bug(
        "of a shared step rank 0's part alone is read",
        "I19",
        "torch/resharding.py",
        "_states_of",
        "shared_state.join(side, whole.paths, whole.of.replicated)",
        "shared_state.join(side, whole.paths[:1], whole.of.replicated)",
        ("tests/torch/test_shared_step.py::test_the_weights_of_a_shared_step_are_put_together",),
    ),
)
