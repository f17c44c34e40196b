"""What is a notice that a host is to be taken away: files, and the answers of clouds as they document them, over real HTTP."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
from pathlib import Path
from typing import Any

import pytest

from recovery.errors import SettingError
from recovery.launch import notices as notices_of_hosts
from recovery.launch.notices import Notice, Notices, TimeLimit, of_host, seconds_left
from tests.launch.clouds import AWS, Cloud, cloud

__all__ = ["cloud"]

GOOGLE = "/computeMetadata/v1/instance/preempted"
AZURE = "/metadata/scheduledevents?api-version=2020-07-01"
AZURE_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that is about an answer that does not come sets its own."""
    monkeypatch.setattr(notices_of_hosts, "_ANSWER_S", 60.0)


def looked(notices: Notices) -> Notice | None:
    return asyncio.run(notices.look())


def of_url(url: str) -> tuple[Notice | None, list[str]]:
    said: list[str] = []
    return looked(Notices(None, url, said.append)), said


def later(seconds: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("", None, None),
        ("36000", 30_000, 36_001),
        (" 36000.5\n", 30_000, 36_001),
        ("%Y-%m-%dT%H:%M:%S+00:00", 30_000, 36_001),
        ("%Y-%m-%dT%H:%M:%SZ", 30_000, 36_001),
        ("2001-01-01 00:00", 0, 0),
    ],
)
def test_a_file_says_how_long_it_takes(
    tmp_path: Path, text: str, least: float | None, most: float | None
) -> None:
    path, said = tmp_path / "notice", list[str]()
    notices = Notices(path, "", said.append)
    assert looked(notices) is None
    path.write_text(later(36_000).strftime(text))
    notice = looked(notices)
    assert notice is not None
    assert notice.source == f"MS_NOTICE_FILE={path}"
    if least is None or most is None:
        assert notice.within_s is None
    else:
        assert notice.within_s is not None
        assert least <= notice.within_s <= most
    assert said == []


@pytest.mark.parametrize("text", ["soon", "nan", "inf", "-5", "1e9", "9" * 30, "\x00"])
def test_what_is_no_time_is_said_and_is_a_notice_all_the_same(tmp_path: Path, text: str) -> None:
    path, said = tmp_path / "notice", list[str]()
    notices = Notices(path, "", said.append)
    path.write_text(text)
    assert looked(notices) == Notice(f"MS_NOTICE_FILE={path}", None)
    [line] = said
    assert "says no time" in line
    assert "MS_STOP_GRACE counts" in line


def test_a_file_from_before_is_a_notice_once_it_is_written_again(tmp_path: Path) -> None:
    path, said = tmp_path / "notice", list[str]()
    path.touch()
    os.utime(path, ns=(1, 1))
    notices = Notices(path, "", said.append)
    assert looked(notices) is None
    assert len(said) == 1
    path.unlink()
    assert looked(notices) is None
    path.touch()
    assert looked(notices) is not None


def test_a_directory_is_a_notice_that_says_no_time(tmp_path: Path) -> None:
    path, said = tmp_path / "notice", list[str]()
    notices = Notices(path, "", said.append)
    path.mkdir()
    assert looked(notices) == Notice(f"MS_NOTICE_FILE={path}", None)
    assert len(said) == 1


def test_aws_says_it_with_its_time(cloud: Cloud) -> None:
    assert of_url(cloud.address + AWS) == (None, [])
    at = later(36_000).strftime("%Y-%m-%dT%H:%M:%SZ")
    cloud.answers[AWS] = (200, json.dumps({"action": "terminate", "time": at}))
    notice, _ = of_url(cloud.address + AWS)
    assert notice is not None
    assert notice.within_s is not None
    assert 30_000 < notice.within_s <= 36_001


def test_aws_with_session_tokens(cloud: Cloud) -> None:
    cloud.token, cloud.wants = "a token", {"X-aws-ec2-metadata-token": "a token"}
    assert of_url(cloud.address + AWS) == (None, [])
    cloud.answers[AWS] = (200, json.dumps({"action": "stop"}))
    notice, _ = of_url(cloud.address + AWS)
    assert notice is not None
    assert notice.within_s is None


def test_google_says_true(cloud: Cloud) -> None:
    cloud.wants = {"Metadata-Flavor": "Google"}
    cloud.answers[GOOGLE] = (200, "FALSE")
    assert of_url(cloud.address + GOOGLE) == (None, [])
    cloud.answers[GOOGLE] = (200, "TRUE\n")
    assert of_url(cloud.address + GOOGLE)[0] == Notice(f"MS_NOTICE_URL={cloud.address}{GOOGLE}", None)


def events(*rows: dict[str, Any]) -> tuple[int, str]:
    return 200, json.dumps({"DocumentIncarnation": 1, "Events": rows})


def test_azure_names_machines_events_and_times(cloud: Cloud) -> None:
    cloud.wants = {"Metadata": "true"}
    cloud.answers[AZURE_NAME] = (200, "vm_1")
    url = cloud.address + AZURE
    cloud.answers[AZURE] = events()
    assert of_url(url) == (None, [])
    at = later(36_000).strftime("%a, %d %b %Y %H:%M:%S GMT")
    cloud.answers[AZURE] = events(
        {"EventType": "Preempt", "Resources": ["vm_2"], "NotBefore": at},
        {"EventType": "Freeze", "Resources": ["vm_1"], "NotBefore": at},
    )
    assert of_url(url) == (None, []), "another machine's, and a pause"
    cloud.answers[AZURE] = events({"EventType": "Preempt", "Resources": ["vm_2", "vm_1"], "NotBefore": at})
    notice, _ = of_url(url)
    assert notice is not None
    assert notice.within_s is not None
    assert 30_000 < notice.within_s <= 36_001
    cloud.answers[AZURE] = events({"EventType": "Terminate", "Resources": ["vm_1"], "NotBefore": ""})
    notice, _ = of_url(url)
    assert notice is not None
    assert notice.within_s == 0


@pytest.mark.parametrize(
    "answer", [(500, "no"), (200, "<html>"), (200, "[]"), (200, '{"Events": 3}'), (200, '{"time": "soon"}')]
)
def test_what_is_no_metadata_is_said_once_and_asked_again(cloud: Cloud, answer: tuple[int, str]) -> None:
    cloud.answers[AWS] = answer
    said = list[str]()
    notices = Notices(None, cloud.address + AWS, said.append)
    assert [looked(notices) for _ in range(11)] == [None] * 11
    [line] = said
    assert "it is asked again" in line
    cloud.answers[AWS] = (200, json.dumps({"action": "terminate"}))
    assert [looked(notices) for _ in range(5)][-1] is not None


def test_nobody_there_ends_nothing() -> None:
    notice, [line] = of_url("http://127.0.0.1:9/nothing")
    assert notice is None
    assert "it is asked again" in line


def test_a_time_without_a_zone_is_utc() -> None:
    assert 30_000 < seconds_left(later(36_000).strftime("%Y-%m-%d %H:%M:%S")) <= 36_001


def ends_in(seconds: float) -> dict[str, str]:
    """As Slurm sets it in the environment of a job."""
    ends = round(later(seconds).timestamp())
    return {"MS_ENABLE_RECOVERY": "1", "SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(ends)}


def of_environment(environment: dict[str, str], *, saves: bool = True) -> tuple[Notices | None, list[str]]:
    said: list[str] = []
    return of_host(environment, said.append, 1_000.0, saves=saves), said


def test_the_end_of_slurms_time_is_a_notice_so_long_before_as_an_end_may_take() -> None:
    notices, said = of_environment(ends_in(900))
    assert notices is not None
    notice = looked(notices)
    assert notice is not None
    assert notice.source.startswith("SLURM_JOB_END_TIME=")
    assert notice.within_s is not None
    assert 300 < notice.within_s <= 901
    later_on, _ = of_environment(ends_in(9_000))
    assert later_on is not None
    assert looked(later_on) is None
    assert said == []


def test_an_end_that_is_past_is_said_and_is_no_notice() -> None:
    """A shell that has outlived an allocation hands its variables on."""
    notices, said = of_environment(ends_in(-5))
    assert notices is not None
    assert looked(notices) is None
    [line] = said
    assert "is past: it is no notice" in line


def test_an_end_that_passes_between_two_looks_leaves_no_time() -> None:
    ends = later(1.0)
    notices = Notices(None, "", lambda _: None, TimeLimit(int(ends.timestamp()) + 1, 0.0))
    while (notice := looked(notices)) is None:
        assert later(-60) < ends, "it was looked at for a minute"
    assert notice.within_s == 0.0


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_JOB_END_TIME", "MS_ENABLE_RECOVERY"])
def test_without_slurm_or_recovery_its_time_says_nothing(name: str) -> None:
    environment = ends_in(900)
    del environment[name]
    assert of_environment(environment) == (None, [])


def test_a_program_that_saves_nothing_by_itself_is_left_to_slurm() -> None:
    """It is asked by Slurm's SIGTERM, and trains until then."""
    assert of_environment(ends_in(900), saves=False) == (None, [])


def test_an_end_that_is_no_number_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match="SLURM_JOB_END_TIME"):
        of_environment({**ends_in(900), "SLURM_JOB_END_TIME": "tomorrow"})
