"""A challenge that a holder does not count is no reason to give the holder up: another one is asked for, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from typing_extensions import override

from recovery import clock
from recovery.transport.file_server import FileServer
from recovery.transport.job_token import CHALLENGE_MS, Authenticator, JobToken
from tests.transport.test_file_transfer import DIGEST, MANIFEST, Held, client, refusal
from tests.transport.test_job_token import SECRET
from tests.transport.wire import HOST, run


class Forgetful(Authenticator):
    """Takes some of its own challenges for answered, as those are that a request was sent with twice."""

    def __init__(self, times: int) -> None:
        super().__init__(JobToken.of(SECRET))
        self.given, self._times = 0, times

    @override
    def challenge(self) -> str:
        text = super().challenge()
        self.given += 1
        if self.given <= self._times:
            self._used[text] = clock.monotonic_ms() + CHALLENGE_MS
        return text


@pytest.mark.parametrize("times", [1, 2])
def test_a_challenge_that_does_not_count_is_asked_for_once_more(tmp_path: Path, times: int) -> None:
    async def main() -> None:
        forgets = Forgetful(times)
        server = FileServer(Held(tmp_path).find, authenticator=forgets)
        port = await server.start(HOST)
        try:
            async with client(port) as asking:
                if times == 1:
                    assert await asking.manifest(DIGEST, 1_000) == MANIFEST
                else:
                    assert "proved it too late" in await refusal(asking.manifest(DIGEST, 1_000))
            assert forgets.given == 2
        finally:
            await server.stop()

    run(main())
