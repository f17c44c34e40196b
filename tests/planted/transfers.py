"""Bugs of what comes from another node: what is believed, what is left behind, whom a node gives its checkpoints."""

from __future__ import annotations

from tests.planted.bug import Bug

_FETCHED = "tests/checkpoint/test_fetched.py"
_TRANSFER = "tests/transport/test_file_transfer.py"
_WORK = "tests/worker/test_copy_work.py"

TRANSFERS: tuple[Bug, ...] = (
    Bug(
        "a fetched file is not compared with its digest",
        "I28",
        "checkpoint/fetched.py",
        '            ("sha256", listed.digest, writer.digest()),\n',
        "",
        (f"{_FETCHED}::test_a_damaged_file_is_refused_and_another_source_may_bring_it",),
    ),
    Bug(
        "any manifest is taken for the one that was named",
        "I28",
        "checkpoint/fetched.py",
        "        verify.compare(where, manifest, self._wanted)\n",
        "",
        (f"{_FETCHED}::test_another_s_manifest_is_refused",),
    ),
    Bug(
        "a copy is taken for whole without a look at its bytes",
        "I28",
        "checkpoint/fetched.py",
        "return held_of(verify.check_wanted(path, wanted), path)",
        "return held_of(manifest, path)",
        (f"{_FETCHED}::test_what_lies_there_already_is_found",),
    ),
    Bug(
        "a process that lost its place publishes what it fetched",
        "I12",
        "checkpoint/fetched.py",
        "(manifest, self._content), place_is_ours)",
        "(manifest, self._content), lambda: True)",
        (f"{_FETCHED}::test_a_process_that_lost_its_place_publishes_nothing",),
    ),
    Bug(
        "a copy fills the disk to its last byte",
        "I17",
        "checkpoint/fetched.py",
        "if free < manifest.file_bytes + SPARE_BYTES:",
        "if free < manifest.file_bytes:",
        (f"{_FETCHED}::test_what_would_fill_the_disk_is_refused_before_it_comes",),
    ),
    Bug(
        "what was half fetched stays",
        "I17",
        "checkpoint/fetched.py",
        "            staged.__exit__(kind, error, trace)\n",
        "            continue\n",
        (f"{_FETCHED}::test_what_is_not_published_leaves_nothing",),
    ),
    Bug(
        "a file of another size is read",
        "I17",
        "transport/file_client.py",
        "if length != file_bytes - received:",
        "if length is None:",
        (f"{_TRANSFER}::test_a_file_of_another_size_is_not_read",),
    ),
    Bug(
        "a transfer that was cut begins again",
        "I14",
        "transport/file_client.py",
        "self._asked(path, _range(received))",
        "self._asked(path, _range(0))",
        (f"{_TRANSFER}::test_a_transfer_that_is_cut_goes_on_where_it_stopped",),
    ),
    Bug(
        "a holder that trickles is waited for",
        "I14",
        "transport/file_client.py",
        "if window < patience.window_bytes:",
        "if window < 0:",
        (f"{_TRANSFER}::test_a_slow_holder_is_given_up",),
    ),
    Bug(
        "whoever knows the token is given weights",
        "I16",
        "transport/file_server.py",
        "if looked.principal.kind is not Kind.NODE:",
        "if not looked.principal.kind:",
        (f"{_TRANSFER}::test_strangers_get_nothing",),
    ),
    Bug(
        "a rolled-back copy stays",
        "I29",
        "worker/copy_work.py",
        "oldest_in_memory=effect.oldest_in_memory, began=began",
        "oldest_in_memory=effect.oldest_in_memory, began=()",
        (f"{_WORK}::test_what_no_plan_can_need_goes",),
    ),
    Bug(
        "a copy that is still needed goes",
        "I29",
        "worker/copy_files.py",
        "                if keeps(rank, one):\n                    continue\n",
        "",
        (f"{_WORK}::test_what_no_plan_can_need_goes",),
    ),
    Bug(
        "a node lists what is its own among its copies",
        "I27",
        "worker/copy_work.py",
        "            if whose != rank\n",
        "",
        (f"{_WORK}::test_what_a_node_has_saved_is_brought_to_another",),
    ),
    Bug(
        "what a holder has not is not held against it",
        "I27",
        "transport/file_client.py",
        "damaged=status == _ABSENT",
        "damaged=False",
        (f"{_WORK}::test_what_does_not_come_names_each_source",),
    ),
)
