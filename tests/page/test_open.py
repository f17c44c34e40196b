"""`recovery open` as it is typed: the link, what is behind it, and its end."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from recovery.errors import ROWS
from tests.page.opened import WAIT_S, begun
from tests.report import long_job


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("job")
    long_job.write(found, nodes=3, failures=2)
    return found


@pytest.fixture
def opened(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and the link that it has printed."""
    with begun(str(path)) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def asked(link: str, path: str) -> IO[bytes]:
    """What is answered to somebody who has the link's key."""
    address, _, key = link.partition("#")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    answer: IO[bytes] = opener.open(f"{address}{path}?key={key}", timeout=WAIT_S)
    return answer


def told(stream: IO[bytes], *names: str) -> dict[str, Any]:
    """The first value of each of these events."""
    found: dict[str, Any] = {}
    name = ""
    while set(names) - set(found):
        said, _, value = stream.readline().decode().rstrip("\n").partition(": ")
        name = value if said == "event" else name
        if said == "data":
            found.setdefault(name, json.loads(value)["value"])
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_link_leads_to_the_job_until_it_is_asked_to_end(
    opened: tuple[subprocess.Popen[str], str], number: signal.Signals
) -> None:
    process, link = opened
    assert link.startswith("http://127.0.0.1:")
    with asked(link, "") as page:
        assert b"<title>recovery</title>" in page.read()
    with asked(link, "plan") as plan:
        assert json.load(plan)[0].startswith("a restart now would ")
    with asked(link, "stream") as stream:
        found = told(stream, "now", "history")
        assert (found["now"]["job"], found["now"]["world_size"], found["now"]["is_over"]) == (
            "large",
            3,
            False,
        )
        assert len(found["history"]["rows"]) == 3
        assert found["history"]["failures"] == 2
        process.send_signal(number)
        assert process.wait(WAIT_S) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_a_port_that_is_taken_is_named(opened: tuple[subprocess.Popen[str], str], path: Path) -> None:
    port = opened[1].partition("#")[0].rstrip("/").rpartition(":")[2]
    with begun(str(path), f"--port={port}") as second:
        assert second.wait(WAIT_S) == ROWS["USAGE"].exit_code
        assert second.stderr is not None
        assert f"--port: {port} cannot be listened on" in second.stderr.read()


def test_a_path_without_a_job_is_refused_before_a_link_is_printed(tmp_path: Path) -> None:
    with begun(str(tmp_path)) as process:
        assert process.wait(WAIT_S) == ROWS["RECOVERY_PATH"].exit_code
        assert process.stdout is not None
        assert process.stdout.read() == ""
