"""Bugs in a save that costs one copy: what is copied, who writes it, and when the next one may begin."""

from __future__ import annotations

from tests.planted.bug import Bug

_LAYOUT = "tests/torch/test_file_layout.py"
_CAPTURE = "tests/training/test_capture.py"
_MAPPED = "tests/torch/test_mapped_file.py"
_WRITER = "tests/checkpoint/test_writer_process.py"

CAPTURES = (
    Bug(
        "a storage that two tensors share is taken for two",
        "I20",
        "torch/file_layout.py",
        "if key not in self._seen:",
        "if key is not None:",
        (f"{_LAYOUT}::test_torch_load_gives_back_what_was_laid_out",),
    ),
    Bug(
        "a tensor is copied to where another belongs",
        "I20",
        "torch/file_layout.py",
        "whole[offset : offset + storage.nbytes()].copy_(",
        "whole[self._offsets[0] : self._offsets[0] + storage.nbytes()].copy_(",
        (f"{_LAYOUT}::test_torch_load_gives_back_what_was_laid_out",),
    ),
    Bug(
        "a class that writes in its own way is not asked to",
        "I20",
        "torch/state.py",
        "if type(self).write is not TrainState.write:",
        "if type(self).write is None:",
        ("tests/torch/test_state.py::test_a_subclass_that_writes_in_its_own_way_is_asked_to_write",),
    ),
    Bug(
        "the first copy is not compared with the state",
        "I19",
        "training/capture.py",
        "if not self._is_checked and file.differs_from(memory):",
        "if self._is_checked and file.differs_from(memory):",
        (f"{_CAPTURE}::test_a_copy_that_differs_from_the_state_is_never_written",),
    ),
    Bug(
        "a first file that reads otherwise becomes a checkpoint",
        "I19",
        "training/capture.py",
        "            raise OSError(errno.EIO, reason)\n",
        "            return\n",
        (
            f"{_CAPTURE}::test_a_first_file_that_is_not_read_back_is_no_checkpoint_and_later_states_write_themselves",
        ),
    ),
    Bug(
        "a capture begins while the one before is still written",
        "I20",
        "training/capture.py",
        "if not self._in_use.acquire(blocking=waits):",
        "if not self._in_use.acquire(blocking=False):",
        (f"{_CAPTURE}::test_the_next_capture_waits_until_the_one_before_is_written",),
    ),
    Bug(
        "a state that raises keeps every later save waiting",
        "I14",
        "training/capture.py",
        "        except BaseException:\n            self._in_use.release()\n",
        "        except BaseException:\n",
        (f"{_CAPTURE}::test_what_a_state_raises_of_its_own_passes_through_and_blocks_nobody",),
    ),
    Bug(
        "a writer that ended is given the next file",
        "I14",
        "training/capture.py",
        "if self._writer is None or not self._writer.is_alive:",
        "if self._writer is None:",
        (f"{_CAPTURE}::test_a_writer_that_ended_costs_at_most_the_save_that_it_was_in",),
    ),
    Bug(
        "a writer that stands still is waited for without end",
        "I14",
        "checkpoint/writer_process.py",
        "waited_s = 0.0 if now > written else waited_s + _LOOK_S",
        "waited_s = 0.0",
        (f"{_WRITER}::test_a_writer_that_was_stopped_is_given_up_and_ended",),
    ),
    Bug(
        "what follows a capture begins at once",
        "I14",
        "training/capture.py",
        "        self._is_waited_for.wait(at_most_s)\n",
        "        self._is_waited_for.wait(0)\n",
        (f"{_CAPTURE}::test_what_follows_a_capture_gives_way_to_other_ranks_until_somebody_waits_for_it",),
    ),
    Bug(
        "what follows a capture gives way to ranks although somebody waits for it",
        "I14",
        "training/capture.py",
        "        self._is_waited_for.set()\n",
        "        self._is_waited_for.is_set()\n",
        (f"{_CAPTURE}::test_what_follows_a_capture_gives_way_to_other_ranks_until_somebody_waits_for_it",),
    ),
    Bug(
        "an optimizer goes on in a file that may be deleted",
        "I20",
        "torch/mapped_file.py",
        'return {**payload, "parts": {**states, **copy.deepcopy(kept)}}',
        'return {**payload, "parts": {**states, **kept}}',
        (f"{_MAPPED}::test_a_restored_state_is_nowhere_in_the_file",),
    ),
    Bug(
        "a module that keeps an extra state in its own way is taken for one of torch's",
        "I20",
        "torch/mapped_file.py",
        '            and _is_torchs(module, "set_extra_state")\n',
        "",
        (f"{_MAPPED}::test_a_restored_state_is_nowhere_in_the_file",),
    ),
    Bug(
        "a module that loads in its own way is taken for one of torch's",
        "I20",
        "torch/mapped_file.py",
        '        and _is_torchs(item, "load_state_dict")\n',
        "",
        (f"{_MAPPED}::test_a_restored_state_is_nowhere_in_the_file",),
    ),
    Bug(
        "tensors that share memory are copied apart",
        "I20",
        "torch/mapped_file.py",
        "**copy.deepcopy(kept)}}",
        "**{name: [{key: copy.deepcopy(one) for key, one in state.items()} for state in part] for name, part in kept.items()}}}",
        (f"{_MAPPED}::test_a_restored_state_is_nowhere_in_the_file",),
    ),
)
