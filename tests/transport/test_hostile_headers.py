"""Whatever stands in the headers of a request: an answer, and nobody who does not know the token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from recovery.core.principals import PrincipalKind
from recovery.transport.job_token import (
    PROOF_HEADER,
    SCHEME,
    Authenticator,
    Caller,
    Denied,
    JobToken,
    Proven,
    is_foreign,
)

SECRET = "a-token-that-nobody-guesses"
SCHEDULER = Authenticator(JobToken(SECRET))
# Bytes that are no UTF-8 come as lone surrogates.
_headers = some.text(some.characters(exclude_categories=()), max_size=200)
_parts = some.lists(_headers | some.from_regex(r"[0-9a-f.]{0,120}", fullmatch=True), max_size=4)


@given(_headers, _headers, _headers)
def test_any_authorization_is_denied(who: str, authorization: str, path: str) -> None:
    looked = SCHEDULER.look_at({"Recovery-As": who, "Authorization": authorization}, "GET", path)
    assert isinstance(looked, Denied)
    assert looked.status == 401


@given(_headers, _parts)
def test_any_parts_of_a_proof_are_denied(who: str, parts: list[str]) -> None:
    challenge = SCHEDULER.challenge()
    for given_parts in (parts, [challenge, *parts[:2]]):
        authorization = " ".join((SCHEME, *given_parts))
        looked = SCHEDULER.look_at({"Recovery-As": who, "Authorization": authorization}, "GET", "/status")
        assert isinstance(looked, Denied)


@given(_headers)
def test_who_knows_the_token_is_somebody_that_there_is_or_nobody(who: str) -> None:
    caller = Caller(PrincipalKind.VIEWER, "", JobToken(SECRET))
    caller.who = who
    answer = caller.answer(SCHEDULER.challenge(), "GET", "/status")
    looked = SCHEDULER.look_at(answer.headers, "GET", "/status")
    if isinstance(looked, Proven):
        assert looked.principal.kind is PrincipalKind.VIEWER or looked.principal.name.isascii()
    else:
        assert looked.status == 403


@given(_headers)
def test_any_proof_of_a_peer_that_does_not_know_the_token_is_none(proof: str) -> None:
    answer = Caller(PrincipalKind.VIEWER, "", JobToken(SECRET)).answer(SCHEDULER.challenge(), "GET", "/")
    assert not answer.holds({PROOF_HEADER: proof})


@given(_headers)
def test_any_host_is_ours_or_foreign(host: str) -> None:
    assert is_foreign(host, frozenset({"node-0"})) in {True, False}
