"""Bugs in the secure channel, and in who is let in by it or by the job's token."""

from __future__ import annotations

from tests.planted.bug import Bug

_CONTEXTS, _WIRE = "tests/tls/test_contexts.py::", "tests/transport/test_wire_tls.py::"
_CERTIFIED, _HANDSHAKES = "tests/transport/test_certified.py::", "tests/transport/test_tls_handshakes.py::"
_RENEWED = "tests/tls/test_renewed_files.py::"
_MATERIAL = "tests/tls/test_bad_material.py::test_what_is_wrong_is_named"

SECURE_CHANNEL = (
    Bug(
        "who presents no certificate is let in",
        "I15",
        "tls/contexts.py",
        "context.verify_mode = ssl.CERT_REQUIRED",
        "context.verify_mode = ssl.CERT_OPTIONAL if server else ssl.CERT_REQUIRED",
        (f"{_CONTEXTS}test_a_client_without_a_certificate_is_refused",),
    ),
    Bug(
        "a client below a revoked authority is let in",
        "I15",
        "tls/contexts.py",
        "context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN",
        "context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF",
        (f"{_CONTEXTS}test_a_client_below_a_revoked_authority_is_refused",),
    ),
    Bug(
        "any scheduler of the authority is believed",
        "I15",
        "tls/contexts.py",
        "context.check_hostname = not server",
        "context.check_hostname = False",
        (f"{_CONTEXTS}test_a_scheduler_of_another_name_is_refused",),
    ),
    Bug(
        "a session is taken up again past the list of revoked ones",
        "I15",
        "tls/contexts.py",
        "context.num_tickets = 0",
        "context.num_tickets = 2",
        (f"{_CONTEXTS}test_no_session_is_taken_up_again",),
    ),
    Bug(
        "new files are read at a restart only",
        "I15",
        "tls/channel.py",
        "if digest != self._seen:",
        "if not self._seen:",
        (
            f"{_WIRE}test_new_files_are_used_without_a_restart",
            f"{_WIRE}test_a_revoked_worker_is_dropped_and_cannot_come_back",
        ),
    ),
    Bug(
        "files that cannot be used take the place of those that could",
        "I14",
        "tls/channel.py",
        'return [Note("tls_files_refused", f"{error} What was loaded before stays in use.")]',
        "raise",
        (f"{_WIRE}test_new_files_that_cannot_be_used_leave_the_old_ones",),
    ),
    Bug(
        "a key is read through a link",
        "I16",
        "tls/checked_files.py",
        "(0 if links else os.O_NOFOLLOW)",
        "(os.O_NOFOLLOW if links else 0)",
        (f"{_MATERIAL}[bundle a link]",),
    ),
    Bug(
        "a revocation list of a later version ends the process",
        "I15",
        "tls/certificates.py",
        "    x509.InvalidVersion,\n",
        "",
        (f"{_MATERIAL}[list of version 10]",),
    ),
    Bug(
        "a certificate's node id is not compared",
        "I4",
        "transport/certified.py",
        "if identity.node_id and not covers(identity.node_id, message.node_id):",
        "if identity.node_id and not message.node_id:",
        (f"{_CERTIFIED}test_a_certificate_that_names_somebody_else_is_refused_for_good",),
    ),
    Bug(
        "a certificate counts for every id that begins like its own",
        "I4",
        "transport/certified.py",
        "return first == named and (not later or _LATER_START.fullmatch(later) is not None)",
        "return first == named",
        (f"{_CERTIFIED}test_a_certificate_counts_for_the_later_ids_of_its_place",),
    ),
    Bug(
        "a certificate makes its holder another one than it has proven to be",
        "I15",
        "transport/certified.py",
        "if proven is None:",
        "if proven is None or proven.name != named.name:",
        (f"{_CERTIFIED}test_a_token_does_not_make_its_holder_another_node_than_its_certificate_names",),
    ),
    Bug(
        "a peer that says nothing holds its place for ever",
        "I17",
        "transport/tls_acceptor.py",
        "call_later(HANDSHAKE_S, self._acceptor.silent, self)",
        "call_later(HANDSHAKE_S * 1_000, self._acceptor.silent, self)",
        (f"{_HANDSHAKES}test_a_peer_that_says_nothing_is_cut_off",),
    ),
    Bug(
        "what was read before TLS began is lost",
        "I14",
        "transport/tls_acceptor.py",
        "rest = memoryview(data)",
        "rest = memoryview(data[1:])",
        (f"{_HANDSHAKES}test_a_handshake_in_single_bytes_is_read_whole",),
    ),
    Bug(
        "who outlives its recovery path is refused for ever",
        "I14",
        "transport/client.py",
        "if not_let_in:",
        "if not not_let_in:",
        (
            "tests/transport/test_job_token_renewed.py::test_who_outlives_its_recovery_path_takes_the_token_of_the_new_one",
        ),
    ),
    Bug(
        "bytes that are no text are an error of nobody's",
        "I14",
        "core/converter.py",
        "UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)",
        "UNREADABLE = (msgspec.MsgspecError, RecursionError)",
        (
            "tests/config/test_rank_table.py::test_bytes_that_are_no_table_are_refused",
            "tests/transport/test_inspection_client.py::test_an_answer_that_is_no_json_counts_as_none",
        ),
    ),
    Bug(
        "a challenge that comes in pieces is answered by its first one",
        "I14",
        "transport/challenge.py",
        "        while len(text) <= _CHALLENGE_BYTES_MAX and (piece",
        "        if len(text) <= _CHALLENGE_BYTES_MAX and (piece",
        (
            "tests/transport/test_job_token.py::test_over_a_wire_that_drips_a_process_proves_itself_all_the_same",
        ),
    ),
    Bug(
        "a handshake that fails for a short key says something else",
        "I14",
        "tls/handshakes.py",
        'r"KEY_TOO_SMALL|certificate key too weak"',
        'r"KEY_TOO_SMALL"',
        ("tests/tls/test_failed_handshakes.py::test_the_scheduler_names_what_is_wrong_with_a_peer",),
    ),
    Bug(
        "any user may exchange the store and the token",
        "I14",
        "store/paths.py",
        "if facts.st_mode & stat.S_IWOTH:",
        "if facts.st_mode & stat.S_IWOTH < 0:",
        ("tests/store/test_failing_disks.py::test_a_directory_where_every_user_may_write_is_refused",),
    ),
    Bug(
        "an error writes what it quotes to the terminal as it stands",
        "I14",
        "errors/base.py",
        "    if text.isprintable():",
        "    if text:",
        ("tests/config/test_printable_errors.py::test_what_an_error_quotes_is_printed_escaped",),
    ),
    Bug(
        "who is not let in dials until everybody has given up",
        "I14",
        "core/worker/connection.py",
        "return now_ms - self._not_let_in_since_ms >= self._rules.lease_ms",
        "return now_ms - self._not_let_in_since_ms < 0",
        (
            "tests/core/test_not_let_in.py::test_who_is_not_let_in_for_a_whole_lease_ends_with_a_code_of_its_own",
        ),
    ),
    Bug(
        "files that could not be used once are never tried again",
        "I15",
        "tls/channel.py",
        "said, self._refused = self._refused, (digest, type(error))",
        "said, self._refused, self._seen = self._refused, (digest, type(error)), digest",
        (f"{_RENEWED}test_a_list_of_a_clock_that_is_ahead_is_used_once_its_time_has_come",),
    ),
    Bug(
        "a failed read ends the watch over certificates",
        "I14",
        "tls/channel.py",
        "except (SecureChannelError, OSError) as error:",
        "except SecureChannelError as error:",
        (f"{_RENEWED}test_without_a_descriptor_the_material_of_before_stays_until_there_is_one",),
    ),
    Bug(
        "a certificate whose names cannot be read restricts nobody",
        "I15",
        "tls/identity.py",
        'raise _refused(certificate, file, "?", f"its extensions cannot be read ({error})") from error',
        "return []",
        (
            "tests/tls/test_identity.py::test_a_certificate_whose_names_cannot_be_read_names_nobody_that_is_let_in",
        ),
    ),
    Bug(
        "a closed socket is handed on and kept for ever",
        "I17",
        "transport/tls_acceptor.py",
        "or shaking.transport.is_closing():",
        "or False:",
        (f"{_HANDSHAKES}test_a_peer_that_resets_behind_its_last_message_leaves_nothing",),
    ),
    Bug(
        "who dials under a name of nobody waits for ever",
        "I14",
        "transport/challenge.py",
        "NOT_LET_IN = frozenset({401, 403, 421})",
        "NOT_LET_IN = frozenset({401, 403})",
        (
            "tests/transport/test_refused_dials.py::test_a_process_with_a_token_learns_why_its_dial_is_refused",
        ),
    ),
    Bug(
        "one fault after the other under a known id fills the store",
        "I17",
        "core/scheduler/refusals.py",
        "return _count(self._known.setdefault(node_id, _Counted()), now_ms)",
        "return 1",
        (
            "tests/core/test_refusals.py::test_who_uses_a_known_id_with_one_fault_after_the_other_gets_one_row_a_minute",
        ),
    ),
)
