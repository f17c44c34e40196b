"""Bugs in who is let say what, and in what who does not belong can cost."""

from __future__ import annotations

from tests.planted.bug import Bug

_WHO = "tests/core/test_principals.py::"

PRINCIPALS = (
    Bug(
        "a worker's word ends another one's process",
        "I23",
        "core/principals.py",
        "if principal.kind is not sender.kind:",
        "if principal.kind is Kind.VIEWER:",
        (f"{_WHO}test_each_principal_may_say_what_is_its_own_and_nothing_else",),
    ),
    Bug(
        "any rank names the rendezvous",
        "I9",
        "core/principals.py",
        "if sender.standing is Standing.RANK_0 and rank != 0:",
        "if sender.standing is Standing.RANK_0 and rank is None:",
        (f"{_WHO}test_only_rank_0_may_name_the_rendezvous",),
    ),
    Bug(
        "who knows the id of an admission takes its session",
        "I4",
        "core/scheduler/admission.py",
        "if proven and register.request_id == record.admission_request:",
        "if register.request_id == record.admission_request:",
        (
            "tests/core/test_scheduler_machine.py::test_who_knows_only_the_id_of_an_admission_is_not_its_holder",
        ),
    ),
    Bug(
        "a certificate of one node registers another",
        "I4",
        "core/principals.py",
        "if isinstance(message, m.Register) and message.node_id != principal.name:",
        "if isinstance(message, m.Register) and not principal.name:",
        (f"{_WHO}test_a_node_registers_under_the_name_that_it_has_proven_and_no_other",),
    ),
)
