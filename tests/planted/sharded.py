"""Bugs in states that are spread over the ranks: what is described, put back, put together and let through."""

from __future__ import annotations

from tests.planted.bug import Bug

_SHARDED = "tests/torch/test_sharded.py"
_WHOLE_STEP = "tests/checkpoint/test_whole_step.py"

SHARDED = (
    Bug(
        "a shard is described as the beginning of the whole",
        "I20",
        "torch/shard_map.py",
        "_described",
        "list(offsets)",
        "[0 for _ in offsets]",
        (f"{_SHARDED}::test_a_file_holds_plain_tensors_and_words_only",),
    ),
    Bug(
        "weights that are placed otherwise are moved by a load",
        "I20",
        "torch/shard_map.py",
        "_compare",
        "saved.placements != here.placements",
        "saved.shape != here.shape",
        (f"{_SHARDED}::test_another_layout_is_refused_before_anything_is_loaded",),
    ),
    Bug(
        "all ranks' files are used without being digested",
        "I8",
        "torch/resharding.py",
        "Saved.__init__",
        "whole.check()\nself._whole = whole",
        "self._whole = whole",
        (f"{_SHARDED}::test_no_unverified_byte_is_read",),
    ),
    Bug(
        "shards in several pieces are read as blocks",
        "I20",
        "torch/resharding.py",
        "Saved._check_covered",
        "not whole or not inside or _overlap(chunks)",
        "not whole or not inside",
        (f"{_SHARDED}::test_shards_in_several_pieces_are_refused_on_another_mesh",),
    ),
    Bug(
        "an optimizer's state is read whole where the parameter is sharded",
        "I20",
        "torch/resharding.py",
        "_Targets._new",
        "parameter.shape == size",
        "parameter.shape != size",
        (f"{_SHARDED}::test_any_mesh_reads_what_any_other_has_saved",),
    ),
    Bug(
        "files of two histories are read as one step",
        "I8",
        "checkpoint/whole_step.py",
        "find",
        "manifest.generation",
        "1",
        (f"{_WHOLE_STEP}::test_files_of_two_histories_of_a_step_are_not_one_checkpoint",),
    ),
    Bug(
        "a step that lacks a rank is taken for whole",
        "I8",
        "checkpoint/whole_step.py",
        "find",
        "len(of_ranks) == key[4]",
        "of_ranks",
        (f"{_WHOLE_STEP}::test_the_newest_whole_step_of_the_newest_run_counts",),
    ),
    Bug(
        "the meshes of a world outlive it",
        "I20",
        "torch/spread.py",
        "forget_meshes",
        "torch._C._clear_DTensor_sharding_propagator_cache()",
        "pass",
        (f"{_SHARDED}::test_any_mesh_reads_what_any_other_has_saved",),
    ),
)
