"""Bugs in who is let say what, and in what who does not belong can cost."""

from __future__ import annotations

from tests.planted.bug import Bug

_WHO = "tests/core/test_principals.py::"

PRINCIPALS = (
    Bug(
        "a worker's word ends another one's process",
        "I23",
        "core/principals.py",
        "violation",
        "principal.kind is not sender.kind",
        "principal.kind is PrincipalKind.VIEWER",
        (f"{_WHO}test_each_principal_may_say_what_is_its_own_and_nothing_else",),
    ),
    Bug(
        "a launcher ends the processes of every host",
        "I23",
        "core/scheduler/membership/death_proof.py",
        "may_report",
        "not hosts or peer in hosts",
        "not hosts or bool(peer)",
        ("tests/core/test_reports_of_hosts.py::test_a_launcher_of_another_host_ends_nobody",),
    ),
    Bug(
        "a peer that invents names fills the store",
        "I17",
        "core/scheduler/refused.py",
        "_count",
        "now_ms - counted.noted_ms < PERIOD_MS",
        "now_ms < counted.noted_ms",
        ("tests/core/test_refusals.py::test_beyond_a_host_of_names_an_address_gets_one_row_a_minute",),
    ),
    Bug(
        "any rank names the rendezvous",
        "I9",
        "core/principals.py",
        "violation",
        "sender.membership is Membership.RANK_0 and rank != 0",
        "sender.membership is Membership.RANK_0 and rank is None",
        (f"{_WHO}test_only_rank_0_may_name_the_rendezvous",),
    ),
    Bug(
        "who knows the id of an admission takes its session",
        "I4",
        "core/scheduler/membership/registration.py",
        "_token_of",
        "proven and register.request_id == record.admission_request",
        "register.request_id == record.admission_request",
        (
            "tests/core/test_scheduler_machine.py::test_who_knows_only_the_id_of_an_admission_is_not_its_holder",
        ),
    ),
    Bug(
        "a certificate of one node registers another",
        "I4",
        "core/principals.py",
        "violation",
        "message.node_id != principal.name",
        "not principal.name",
        (f"{_WHO}test_a_node_registers_under_the_name_that_it_has_proven_and_no_other",),
    ),
    Bug(
        "a proof of the job's token is taken twice",
        "I4",
        "transport/job_token.py",
        "Authenticator.look_at",
        "ends_ms is None or ends_ms <= now_ms or challenge in self._used",
        "ends_ms is None or ends_ms <= now_ms",
        ("tests/transport/test_job_token.py::test_a_proof_holds_once_for_what_it_was_made_for",),
    ),
    Bug(
        "a stranger is shown every view",
        "I16",
        "transport/server.py",
        "Server._answer",
        "self._look_at(request, body)",
        "self._look_at(request, body) if request.path == CLUSTER_PATH else None",
        ("tests/transport/test_job_token.py::test_a_stranger_sees_nothing_but_that_somebody_is_alive",),
    ),
    Bug(
        "a proxy shows a stranger the metrics of its own host's scheduler",
        "I16",
        "transport/inspection_server.py",
        "is_of_this_host",
        "is_own and not any(header in request.headers for header in _FOR_ANOTHER)",
        "is_own",
        ("tests/transport/test_metrics_access.py::test_own_host_or_the_job_s_token",),
    ),
    Bug(
        "any bearer token is the job's",
        "I16",
        "transport/job_token.py",
        "Authenticator.bearer",
        "not self._token.is_text(given.strip())",
        "not given",
        ("tests/transport/test_metrics_access.py::test_own_host_or_the_job_s_token",),
    ),
    Bug(
        "a worker follows a scheduler that proves nothing",
        "I4",
        "transport/client.py",
        "Client._dial",
        "not answer.holds(proofs.headers)",
        "answer.expected in proofs.headers",
        (
            "tests/transport/test_job_token.py::test_a_scheduler_that_lets_everybody_in_without_knowing_the_token_is_found_out",
        ),
    ),
    Bug(
        "a token that others can read is used",
        "I16",
        "store/job_token_file.py",
        "_check",
        "facts.st_mode & 0o077",
        "facts.st_mode & 0o002",
        ("tests/store/test_job_token_file.py::test_what_others_could_know_or_choose_is_refused",),
    ),
    Bug(
        "a message before admission is as long as its parts",
        "I17",
        "transport/connection_limiter.py",
        "ConnectionLimiter.bytes_received",
        "accepted.received_bytes += count",
        "accepted.received_bytes = count",
        (
            "tests/transport/test_message_parts.py::test_a_message_in_parts_before_the_admission_is_bounded_like_a_whole_one",
        ),
    ),
)
