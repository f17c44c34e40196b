"""Bugs in what a process knows of its own memory: what it offers to others after a loss, and what it makes of what it takes."""

from __future__ import annotations

from tests.planted.bug import Bug

_MEMORY = "tests/torch/test_live_memory.py"
_PARTS = "tests/torch/test_live_shards.py"
_WORLD = "tests/torch/test_process_group.py"
_KIND = "tests/cluster/test_live_kinds.py::test_no_step_is_lost[{}]"

SURVIVORS = (
    Bug(
        "a state in the middle of an optimizer's step is given",
        "I30",
        "torch/live_hooks.py",
        "Hooks._step_begins",
        "self.torn = self.torn or f'{type(optimizer).__name__} had begun its step'",
        "",
        (f"{_MEMORY}::test_survivor_is_torn_until_the_next_boundary",),
    ),
    Bug(
        "a look behind callbacks takes what was sent for the step before",
        "I30",
        "torch/mirrored_buffers.py",
        "MirroredBuffers.boundary",
        "self._look_behind_callbacks(now, kept)",
        "self._turn(now, kept)",
        (_KIND.format("statistics"),),
    ),
    Bug(
        "what a callback changes in rank 0's buffers is not kept",
        "I30",
        "torch/mirrored_buffers.py",
        "MirroredBuffers._look_behind_callbacks",
        "self._keep(now, kept, changed)",
        "",
        (_KIND.format("changed_by_a_callback"),),
    ),
    Bug(
        "nobody hears that rank 0 has seen another buffer change",
        "I30",
        "torch/mirrored_buffers.py",
        "MirroredBuffers.boundary",
        "if self._asked:",
        "if self._asked and not self._settled:",
        (_KIND.format("two_models"),),
    ),
    Bug(
        "what was voted on is not given to the next generation",
        "I30",
        "torch/live_memory.py",
        "LiveMemory.transfer",
        "tree['mirrored']",
        "{}",
        ("tests/torch/test_live_rollback.py::test_survivors_memory_goes_on_as_if_nothing_had_happened[[]]",),
    ),
    Bug(
        "a rank counts as a replica that holds the same of one tensor only",
        "I30",
        "torch/live_shards.py",
        "replicas",
        "found & alike",
        "found | alike",
        (f"{_PARTS}::test_of_two_tensors_the_ranks_count_that_hold_both",),
    ),
    Bug(
        "what an optimizer keeps of a spread parameter comes back as this rank's part",
        "I9",
        "torch/live_content.py",
        "_put_optimizer",
        "if parts:",
        "if not parts:",
        (f"{_PARTS}::test_a_part_goes_into_a_tensor_of_the_next_world",),
    ),
    Bug(
        "gradients of one rank alone are given",
        "I30",
        "torch/live_memory.py",
        "LiveMemory._apart",
        "if self.replicas and (name := self._parts.unreduced()):",
        "if not self.replicas and (name := self._parts.unreduced()):",
        (f"{_PARTS}::test_gradients_that_were_not_added_over_the_ranks_cannot_be_given",),
    ),
    Bug(
        "a module that was left in its forward pass counts as another one",
        "I30",
        "torch/live_shards.py",
        "show_own_parts",
        "module.state_dict()",
        "",
        (f"{_PARTS}::test_a_module_that_was_left_in_its_forward_pass_has_its_parts_again",),
    ),
    Bug(
        "parts of another size have the same structure",
        "I30",
        "torch/live_shards.py",
        "described",
        'f" {tuple(local(tensor).shape)} by {tensor.placements} on {tuple(tensor.device_mesh.shape)}"',
        'f" by {tensor.placements} on {tuple(tensor.device_mesh.shape)}"',
        (f"{_PARTS}::test_parts_of_another_size_have_another_structure",),
    ),
    Bug(
        "what was built on the mesh of a world that is over is kept",
        "I9",
        "training/live_rollback.py",
        "LiveRollback.left",
        "self._leave_world()",
        "",
        ("tests/cluster/test_live_shards.py::test_what_is_held_twice_costs_no_step[one-kept]",),
        hangs=True,
    ),
    Bug(
        "a world is broken by ending what is sent as well",
        "I14",
        "torch/sockets.py",
        "_end_reading",
        "socket.SHUT_RD",
        "socket.SHUT_RDWR",
        (f"{_WORLD}::test_shutting_down_spares_listeners_pipes_and_what_is_not_named",),
    ),
    Bug(
        "the peers of a world that was broken see its sockets close",
        "I14",
        "torch/sockets.py",
        "EndedSockets._end_one",
        "self._held[inode] = opened",
        "opened.close()",
        (f"{_WORLD}::test_the_peer_of_a_socket_that_was_ended_does_not_notice_before_it_is_let_go_of",),
    ),
)
