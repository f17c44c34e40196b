"""A URL of object storage names a place: where a variable in it was unset, checkpoints would go into a directory of the disk, or nowhere."""

from __future__ import annotations

import pytest

from recovery import config
from tests.config.environments import WORKER, refusal

NAME = "MS_CHECKPOINT_STORE"


@pytest.mark.parametrize(
    "url",
    [
        "s3:",
        "s3:/bucket",
        "s3://",
        "s3:///",
        "s3:///prefix",
        "s3:////prefix",
        "s3a:///prefix",
        "gs:///",
        "gs:///prefix",
        "abfs:///prefix",
        "http:///prefix",
        "memory:///",
        "file://",
        "file:///",
        "file:////",
        "file://relative/directory",
        "local://relative",
        "local:///",
        "hdfs:///",
        "bucket/prefix",
        "s3://two words",
        "s3://bucket/prefix?versionId=1",
    ],
)
def test_a_url_without_a_place_is_refused_by_name(url: str) -> None:
    error = refusal({**WORKER, NAME: url})
    assert error.code == "SETTING_TYPE"
    text = str(error)
    assert f"{NAME}={url!r}: must be a URL of a scheme and a place (a bucket or host" in text
    assert f"for example {NAME}=s3://bucket/prefix" in text


def test_what_may_be_a_password_is_not_shown() -> None:
    error = refusal({**WORKER, NAME: "s3://key:hush@bucket/prefix"})
    assert error.code == "SETTING_TYPE"
    assert "hush" not in str(error)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket",
        "s3://bucket/",
        "s3://bucket/prefix/",
        "s3a://bucket/prefix",
        "gs://bucket/prefix",
        "abfs://container/prefix",
        "file:///mnt/checkpoints",
        "local:///mnt/checkpoints",
        "hdfs://namenode:8020/prefix",
        "hdfs:///prefix",
    ],
)
def test_a_url_with_a_place_is_taken_as_it_is(url: str) -> None:
    assert config.load({**WORKER, NAME: url}).checkpoint_store == url
