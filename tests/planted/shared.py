"""Bugs in checkpoints that ranks write together."""

from __future__ import annotations

from tests.planted.bug import Bug

SHARED = (
    Bug(
        "a part of another history is mixed in",
        "I8",
        "training/shared_load.py",
        '        ("replicated", manifest.replicated[:12], own.replicated[:12]),\n',
        "",
        ("tests/training/test_shared_load.py::test_a_part_of_another_history_is_refused_by_name",),
    ),
    Bug(
        "another rank's damaged part is loaded",
        "I8",
        "training/shared_load.py",
        "    manifest = verify.check(other, only=FileRole.PART)\n",
        "    manifest = verify.check(other, only=FileRole.STATE)\n",
        ("tests/training/test_shared_load.py::test_whatever_is_gone_or_changed_is_refused",),
    ),
    Bug(
        "what was put together is not compared with what was saved",
        "I8",
        "torch/shared_state.py",
        "    if fingerprint.joined(fingerprint.of_parts(shared.trees)) != replicated:\n",
        "    if not replicated:\n",
        (
            "tests/torch/test_shared_state.py::test_parts_that_do_not_belong_together_are_refused_before_anything_is_loaded",
        ),
    ),
    Bug(
        "a shared save is no copy",
        "I20",
        "torch/shared_state.py",
        "        self._part = copy.deepcopy(mine)\n",
        "        self._part = mine\n",
        ("tests/torch/test_shared_state.py::test_every_rank_gets_its_own_bits_back",),
    ),
    Bug(
        "batch statistics of one rank are given to all",
        "I20",
        "torch/state.py",
        "        return lambda part, key: part in whole or (part, key) in buffers\n",
        "        return lambda part, key: part in whole\n",
        ("tests/torch/test_shared_state.py::test_every_rank_gets_its_own_bits_back",),
    ),
    Bug(
        "a note of an earlier generation counts as seen",
        "I19",
        "training/shared_directory.py",
        "        return found == msgspec.structs.replace(self._note, rank=rank)\n",
        "        return found.rank == rank\n",
        (
            "tests/training/test_shared_directory.py::test_a_note_that_is_not_the_other_ranks_own_of_now_does_not_count",
        ),
    ),
    Bug(
        "one rank writes all that is shared",
        "I17",
        "torch/shared_plan.py",
        "        loads[rank] += size\n",
        "",
        (
            "tests/torch/test_shared_plan.py::test_every_storage_has_one_rank_and_none_much_more_than_its_share",
        ),
    ),
)
