"""By which names a scheduler may be called: by any where a token is proven, else by its own."""

from __future__ import annotations

from recovery.transport import job_token
from recovery.transport.job_token import Authenticator, JobToken
from tests.transport.test_job_token import SECRET, VIEWS, get
from tests.transport.wire import in_thread, run, serving


def test_whoever_proves_the_token_may_call_the_scheduler_by_any_name() -> None:
    """One that listens at 0.0.0.0 does not know the name of the Service before it, by which everybody dials."""
    it = Authenticator(JobToken(SECRET), frozenset({"0.0.0.0"}))

    async def main() -> None:
        async with serving(authenticator=it, inspection=VIEWS) as (_, port):
            named = {"Host": f"trainer-sched:{port}"}
            assert (await in_thread(lambda: get(port, "/events", named)))[0] == 401, (
                "the token is asked for, not the name"
            )
            assert (await in_thread(lambda: get(port, job_token.CHALLENGE_PATH, named)))[0] == 200
        async with serving(authenticator=Authenticator(None, frozenset({"0.0.0.0"})), inspection=VIEWS) as (
            _,
            port,
        ):
            assert (await in_thread(lambda: get(port, "/events", named)))[0] == 421, (
                "a page of a browser would see all"
            )

    run(main())
