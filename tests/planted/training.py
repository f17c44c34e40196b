"""Bugs in the training process: its last words, its gradients, its threads, and how it replaces itself."""

from __future__ import annotations

from tests.planted.bug import Bug

TRAINING = (
    Bug(
        "a class is learnt by the first two threads that meet it",
        "I14",
        "core/converter.py",
        "        msgspec.json.Decoder(shape)\n",
        "",
        (
            "tests/house/test_type_information.py::test_what_is_read_for_the_first_time_builds_no_type_information",
        ),
    ),
)
