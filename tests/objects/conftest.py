"""Object storage for tests: a real S3 server on loopback where one is installed, and a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery.checkpoint.verify import check
from recovery.objects import commits
from recovery.objects.commits import Commit
from recovery.objects.store import ObjectStore
from tests.needs import needs_package

BUCKET = "bucket"


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    """Of the server in TESTS_S3_ADDRESS; without it of one that is started here."""
    needs_package("s3fs")
    if address := os.environ.get("TESTS_S3_ADDRESS"):
        yield address
        return
    server_module = needs_package("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "file":
        needs_package("fsspec")
        return ObjectStore(f"file://{tmp_path}/objects")
    address = request.getfixturevalue("s3_address")
    return opened_for_tests(address, tmp_path)


def client_of(address: str, place: Path, **options: Any) -> ObjectStore:
    """A place of its own in the bucket of the server at `address`."""
    return ObjectStore(
        f"s3://{BUCKET}/{place.parent.name}-{place.name}",
        key="test",
        secret="test",
        client_kwargs={"endpoint_url": address, "region_name": "us-east-1"},
        **options,
    )


def opened_for_tests(address: str, place: Path) -> ObjectStore:
    """As `client_of`; the bucket is made where it is absent."""
    made = client_of(address, place)
    if not made._files.exists(BUCKET):
        made._files.call_s3("create_bucket", Bucket=BUCKET)
    return made


def sent(store: ObjectStore, checkpoint: Path) -> Commit | None:
    """As `commits.send`, of a published checkpoint that is verified first."""
    return commits.send(store, checkpoint, check(checkpoint))
