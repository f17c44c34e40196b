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
        '"offsets": list(offsets),',
        '"offsets": [0 for _ in offsets],',
        (f"{_SHARDED}::test_a_file_holds_plain_tensors_and_words_only",),
    ),
    Bug(
        "weights that are placed otherwise are moved by a load",
        "I20",
        "torch/shard_fit.py",
        "and saved.placements != here.placements",
        "and saved.shape != here.shape",
        (f"{_SHARDED}::test_another_layout_is_refused_before_anything_is_loaded",),
    ),
    Bug(
        "all ranks' files are used without being digested",
        "I8",
        "torch/resharding.py",
        "        whole.check()\n",
        "",
        (f"{_SHARDED}::test_no_unverified_byte_is_read",),
    ),
    Bug(
        "shards in several pieces are read as blocks",
        "I20",
        "torch/resharding.py",
        "if not whole or not inside or _overlap(chunks):",
        "if not whole or not inside:",
        (f"{_SHARDED}::test_shards_in_several_pieces_are_refused_on_another_mesh",),
    ),
    Bug(
        "an optimizer's state is read whole where the parameter is sharded",
        "I20",
        "torch/resharding.py",
        "if isinstance(parameter, DTensor) and parameter.shape == size:",
        "if isinstance(parameter, DTensor) and parameter.shape != size:",
        (f"{_SHARDED}::test_any_mesh_reads_what_any_other_has_saved",),
    ),
    Bug(
        "files of two histories are read as one step",
        "I8",
        "checkpoint/whole_step.py",
        "manifest.step, manifest.generation, manifest.world_size",
        "manifest.step, 1, manifest.world_size",
        (f"{_WHOLE_STEP}::test_files_of_two_histories_of_a_step_are_not_one_checkpoint",),
    ),
    Bug(
        "a step that lacks a rank is taken for whole",
        "I8",
        "checkpoint/whole_step.py",
        "if len(of_ranks) == key[4]:",
        "if of_ranks:",
        (f"{_WHOLE_STEP}::test_the_newest_whole_step_of_the_newest_run_counts",),
    ),
    Bug(
        "the meshes of a world outlive it",
        "I20",
        "torch/sharded.py",
        "        clear()\n",
        "        pass\n",
        (f"{_SHARDED}::test_any_mesh_reads_what_any_other_has_saved",),
    ),
)
