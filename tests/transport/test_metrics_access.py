"""Who may ask for the metrics: a process of the scheduler's own host, and who sends the job's token; nobody else."""

from __future__ import annotations

import asyncio
import http.client

import pytest

from recovery.core.principals import PrincipalKind
from recovery.transport import inspection_client
from recovery.transport.access import Access
from recovery.transport.inspection_client import NoAnswerError
from recovery.transport.inspection_server import Inspection, json_route
from recovery.transport.job_token import Authenticator, Caller, JobToken
from tests.transport.wire import HOST, WAIT_S, in_thread, run, serving

SECRET = "a-token-that-nobody-guesses"
ELSEWHERE = "127.0.0.2"
"""What a peer of another host looks like to a server at 127.0.0.1."""


async def told(accept: str) -> tuple[bytes, str]:
    await asyncio.sleep(0)
    return f"asked_for {len(accept)}\n".encode(), "text/plain; version=0.0.4; charset=utf-8"


async def broken(_accept: str) -> tuple[bytes, str]:
    await asyncio.sleep(0)
    message = "it fails"
    raise ValueError(message)


SHOWN = Inspection(routes=(("/status", json_route(dict)),), pages=(("/metrics", told),))


def ask(
    port: int, headers: dict[str, str], *, source: str = HOST, path: str = "/metrics", method: str = "GET"
) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=WAIT_S, source_address=(source, 0))
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers.get("Content-Type", "")
    finally:
        connection.close()


def answered(
    headers: dict[str, str] | None = None,
    *,
    token: str | None = SECRET,
    inspection: Inspection = SHOWN,
    source: str = HOST,
    path: str = "/metrics",
    method: str = "GET",
) -> tuple[int, str, str]:
    async def main() -> tuple[int, str, str]:
        given = Authenticator(JobToken.of(token), frozenset({"the-host"}))
        async with serving(inspection=inspection, authenticator=given) as (_, port):
            return await in_thread(lambda: ask(port, headers or {}, source=source, path=path, method=method))

    return run(main())


BEARER = {"Authorization": f"Bearer {SECRET}"}


@pytest.mark.parametrize(
    ("headers", "source", "status"),
    [
        ({}, HOST, 200),
        ({"Host": "the-host:8118"}, HOST, 200),
        ({"Host": "a-page.example"}, HOST, 401),
        ({"Origin": "http://a-page.example"}, HOST, 401),
        ({"X-Forwarded-For": "192.0.2.1"}, HOST, 401),
        ({"Via": "1.1 a-proxy"}, HOST, 401),
        ({}, ELSEWHERE, 401),
        (BEARER, ELSEWHERE, 200),
        ({"Authorization": f"bearer {SECRET}"}, ELSEWHERE, 200),
        ({**BEARER, "X-Forwarded-For": "192.0.2.1"}, HOST, 200),
        ({"Authorization": f"Bearer {SECRET}x"}, ELSEWHERE, 403),
        ({"Authorization": "Bearer"}, ELSEWHERE, 403),
        ({"Authorization": "Bearer \xff"}, ELSEWHERE, 403),
        ({"Authorization": f"Bearer {SECRET}x"}, HOST, 403),
        ({"Authorization": f"Basic {SECRET}"}, ELSEWHERE, 401),
    ],
)
def test_own_host_or_the_job_s_token(headers: dict[str, str], source: str, status: int) -> None:
    found, body, _ = answered(headers, source=source)
    assert found == status
    assert ("asked_for" in body) == (status == 200)


def test_a_bearer_is_shown_the_metrics_alone() -> None:
    assert answered(BEARER, path="/status")[0] == 401
    assert answered({}, path="/status")[0] == 401, "a process of this host proves what it is, too"


def test_who_answers_a_challenge_may_ask_as_for_any_view() -> None:
    async def main() -> None:
        given = Authenticator(JobToken(SECRET), frozenset())
        viewer = Caller(PrincipalKind.VIEWER, "", JobToken(SECRET))
        async with serving(inspection=SHOWN, authenticator=given) as (_, port):
            # The answer is no JSON: it came, and was not refused.
            with pytest.raises(NoAnswerError, match="JSON"):
                await inspection_client.ask(HOST, port, "/metrics", access=Access(viewer))

    run(main())


def test_where_the_network_is_trusted_everybody_may_ask_by_an_address_of_the_scheduler() -> None:
    assert answered(token=None, source=ELSEWHERE)[0] == 200
    assert answered({"Host": "a-page.example"}, token=None)[0] == 421


def test_the_wish_for_a_format_reaches_it_and_its_type_comes_back_whole() -> None:
    assert answered({"Accept": "text/plain"}) == (
        200,
        "asked_for 10\n",
        "text/plain; version=0.0.4; charset=utf-8",
    )


def test_metrics_that_fail_end_nothing_and_are_not_acted_on(caplog: pytest.LogCaptureFixture) -> None:
    assert answered(inspection=Inspection(pages=(("/metrics", broken),)))[0] == 500
    assert "event=inspection_failed path=/metrics" in caplog.text
    assert answered(method="POST")[0] == 405
    status, body, _ = answered(inspection=Inspection())
    assert (status, "/metrics" in body) == (404, False)
    assert "/metrics" in answered(token=None, path="/nothing")[1]
