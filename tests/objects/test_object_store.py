"""Objects are created once, and what was created is what is read."""

from __future__ import annotations

import concurrent.futures
import errno
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typing_extensions import override

from recovery.errors import CheckpointManifestError, CheckpointWriteError
from recovery.objects.store import PIECE_BYTES, ObjectStore
from tests.needs import needs_package
from tests.objects.conftest import client_of, opened_for_tests
from tests.objects.test_disks_lost import environment_of


def test_the_first_writer_of_an_object_wins(store: ObjectStore) -> None:
    assert store.create("run-1/commits/7.json", b"first")
    assert not store.create("run-1/commits/7.json", b"second")
    assert store.read("run-1/commits/7.json", bytes_max=100) == b"first"


def test_a_writer_whose_answer_was_lost_finds_its_own_object(store: ObjectStore) -> None:
    assert store.create("one", b"same")
    assert store.create("one", b"same")


def test_one_of_many_writers_at_once_wins(store: ObjectStore) -> None:
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        won = list(pool.map(lambda n: store.create("raced", b"writer %d" % n), range(6)))
    assert won.count(True) == 1
    assert store.read("raced", bytes_max=100) == b"writer %d" % won.index(True)


def test_a_file_comes_back_in_pieces(store: ObjectStore, tmp_path: Path) -> None:
    content = bytes(range(256)) * (PIECE_BYTES // 256) + b"rest"
    (tmp_path / "large").write_bytes(content)
    store.put("files/large", tmp_path / "large")
    pieces = list(store.pieces("files/large"))
    assert len(pieces) >= 2
    assert b"".join(pieces) == content


def test_what_is_listed_is_what_was_made_and_not_removed(store: ObjectStore) -> None:
    assert store.names("commits") == ()
    for name in ("2.json", "1.json"):
        store.create(f"commits/{name}", b"x")
    assert store.names("commits") == ("1.json", "2.json")
    store.remove("commits/1.json")
    store.remove("commits/1.json")
    assert store.names("commits") == ("2.json",)


def test_what_is_absent_is_told_from_what_cannot_be_read(store: ObjectStore) -> None:
    assert store.read("absent", bytes_max=10) is None
    with pytest.raises(CheckpointManifestError, match="absent"):
        list(store.pieces("absent"))


def test_a_storage_that_does_not_answer_is_an_error_of_ours() -> None:
    needs_package("s3fs")
    store = ObjectStore(
        "s3://bucket/x",
        key="test",
        secret="test",
        client_kwargs={"endpoint_url": "http://127.0.0.1:1"},
        config_kwargs={"retries": {"max_attempts": 0}},
    )
    store._files.retries = 1
    with pytest.raises(CheckpointWriteError, match="s3://bucket/x/a"):
        store.create("a", b"x")
    with pytest.raises(CheckpointManifestError, match="s3://bucket/x/a"):
        store.read("a", bytes_max=1)


def test_a_url_that_no_driver_knows_is_refused() -> None:
    needs_package("fsspec")
    with pytest.raises(CheckpointWriteError, match="nowhere"):
        ObjectStore("nowhere://bucket")


def test_a_file_system_without_hard_links_keeps_the_first_object_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "what link(2) says on vfat")

    monkeypatch.setattr(os, "link", refuse)
    store = ObjectStore(f"file://{tmp_path}")
    assert store.create("commits/7.json", b"first")
    assert not store.create("commits/7.json", b"second")
    assert store.read("commits/7.json", bytes_max=100) == b"first"
    assert store.names("commits") == ("7.json",)
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for key in map(str, range(200)):
            won = list(pool.map(lambda n, key=key: store.create(key, b"writer %d" % n), range(6)))
            assert won.count(True) == 1, key


@pytest.mark.parametrize("refusal", [(412, "PreconditionFailed"), (409, "ConditionalRequestConflict")])
def test_a_refusal_that_names_no_condition_is_believed(tmp_path: Path, refusal: tuple[int, str]) -> None:
    """As SeaweedFS answers; the driver asks for the condition in the body, as AWS sends it."""
    needs_package("s3fs")
    status, code = refusal

    class Holds(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        """The driver sends a body behind `100 Continue` only."""

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())

        def do_GET(self) -> None:
            self.answer(200, b"first")

        def do_HEAD(self) -> None:
            self.answer(200, b"first")

        def answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        @override
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Holds) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            store = client_of(f"http://127.0.0.1:{server.server_address[1]}", tmp_path)
            assert not store.create("commits/7.json", b"second")
            assert store.create("commits/7.json", b"first")
        finally:
            server.shutdown()
            thread.join()


AT_EXIT = """
import atexit, sys
from recovery.objects.store import opened

atexit.register(lambda: print(opened(sys.argv[1]).create("late", b"x")))
"""


def test_the_first_question_may_be_asked_behind_the_end_of_a_script(tmp_path: Path, s3_address: str) -> None:
    """The last checkpoint of a short job, or of one on a busy host: Python has shut every executor down by then."""
    store = opened_for_tests(s3_address, tmp_path)
    asked = subprocess.run(
        [sys.executable, "-c", AT_EXIT, store.url],
        env={**os.environ, **environment_of(s3_address, store.url)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout == "True\n", asked.stderr
    assert store.read("late", bytes_max=1) == b"x"
