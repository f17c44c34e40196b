"""A process that outlives its recovery path: the token of the new one lets it in, with its next dial."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from recovery import clock
from recovery.config.secret import Secret
from recovery.core.principals import PrincipalKind
from recovery.errors import RecoveryPathError
from recovery.store import job_token_file
from recovery.transport import inspection_client, job_token
from recovery.transport.access import Access
from recovery.transport.client import ConnectError
from recovery.transport.inspection_client import NoAnswerError
from recovery.transport.job_token import Authenticator, Caller, JobToken
from tests.transport.test_job_token import SECRET, VIEWER, VIEWS, WORKER, authenticator, client
from tests.transport.wire import HOST, WAIT_S, register, run, serving, until


def test_who_outlives_its_recovery_path_takes_the_token_of_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "recovery"
    before = job_token_file.shared(path)
    caller = Caller(PrincipalKind.NODE, "worker_0", JobToken(before), job_token_file.source_of(None, path))
    shutil.rmtree(path)
    caller.renew()
    assert caller.token is not None, "what nobody stores any more is still what the others know"

    async def main() -> None:
        async with serving(authenticator=authenticator(job_token_file.shared(path))) as (receiver, port):
            dialled = client(port, caller)
            with pytest.raises(ConnectError, match="another one"):
                await dialled.connect(WAIT_S)
            await dialled.connect(WAIT_S)
            dialled.send(register())
            await until(lambda: receiver.messages)
            await dialled.close()

    run(main())


def test_a_view_is_asked_for_with_the_new_token_too(tmp_path: Path) -> None:
    path = tmp_path / "recovery"
    caller = Caller(
        PrincipalKind.VIEWER, "", JobToken("one-that-was-before"), job_token_file.source_of(None, path)
    )

    async def main() -> None:
        new = authenticator(job_token_file.shared(path))
        async with serving(authenticator=new, inspection=VIEWS) as (_, port):
            with pytest.raises(NoAnswerError, match="another one"):
                await inspection_client.ask(HOST, port, "/status", access=Access(caller))
            assert await inspection_client.ask(HOST, port, "/status", access=Access(caller)) == {"nodes": []}

    run(main())


def test_a_scheduler_that_outlives_the_file_takes_the_token_of_the_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "recovery"
    before, source = job_token_file.shared(path), job_token_file.source_of(None, path)
    survivor = Caller(PrincipalKind.NODE, "worker_0", JobToken(before), source)
    (path / job_token_file.NAME).unlink()
    late = Caller(PrincipalKind.NODE, "worker_1", JobToken(job_token_file.shared(path)), source)

    async def main() -> None:
        asked = Authenticator(JobToken(before), stored=source)
        async with serving(authenticator=asked) as (_, port):
            for caller in (late, survivor):
                dialled = client(port, caller)
                with pytest.raises(ConnectError, match="another one"):
                    await dialled.connect(WAIT_S)
                await dialled.connect(WAIT_S)
                await dialled.close()

    run(main())
    assert caplog.text.count("event=job_token_renewed") == 1


def test_strangers_do_not_make_a_scheduler_read_its_disk_without_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    now_ms = [clock.monotonic_ms()]
    monkeypatch.setattr(clock, "monotonic_ms", lambda: now_ms[0])

    def stored() -> str | None:
        looks.append(clock.monotonic_ms())
        if len(looks) == 1:
            raise RecoveryPathError(path="x", reason="is gone", next_step="Wait.")
        return None

    async def main() -> None:
        asked = Authenticator(JobToken(SECRET), stored=stored)
        stranger = Caller(PrincipalKind.VIEWER, "", JobToken("another-token-than-that"))
        async with serving(authenticator=asked, inspection=VIEWS) as (_, port):
            for looked in (1, 2, 3):
                for _ in range(10):
                    with pytest.raises(NoAnswerError, match="another one"):
                        await inspection_client.ask(HOST, port, "/status", access=Access(stranger))
                assert len(looks) == looked, "once, however often strangers ask"
                now_ms[0] += job_token.LOOK_MS - 1
                with pytest.raises(NoAnswerError, match="another one"):
                    await inspection_client.ask(HOST, port, "/status", access=Access(stranger))
                assert len(looks) == looked, "the time is not over"
                now_ms[0] += 1
            assert await inspection_client.ask(HOST, port, "/status", access=Access(VIEWER)) == {"nodes": []}

    run(main())
    assert caplog.text.count("event=job_token_not_read") == 1
    assert "event=job_token_renewed" not in caplog.text


def test_a_token_that_others_may_read_by_now_is_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "recovery"
    job_token_file.shared(path)
    (path / job_token_file.NAME).chmod(0o644)
    known = JobToken("one-that-was-before")
    caller = Caller(PrincipalKind.NODE, "worker_0", known, job_token_file.source_of(None, path))
    caller.renew()
    assert caller.token is known
    assert "event=job_token_not_read" in caplog.text
    assert "0644" in caplog.text


def test_a_token_that_was_given_stays(tmp_path: Path) -> None:
    job_token_file.shared(tmp_path)
    assert job_token_file.source_of(Secret("given-to-every-process"), tmp_path) is None
    assert job_token_file.source_of(None, None) is None
    WORKER.renew()
    assert WORKER.token is not None
