"""Posting to a TrainJob: what must be set, what a server may do, and what is said of it. Real HTTPS."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from recovery.launch.train_job_posts import Server, TrainJobPosts, for_processes, server_of
from recovery.launch.worker_completion import WorkerCompletion
from tests.launch.test_status_line import node, status
from tests.launch.train_job_server import TOKEN, Controller, controller

__all__ = ["controller"]

SET = {
    "KUBEFLOW_TRAINER_SERVER_URL": "https://trainer.kubeflow.svc:10443/apis/status",
    "KUBEFLOW_TRAINER_SERVER_CA_CERT": "/var/run/secrets/kubeflow/trainer/ca.crt",
    "KUBEFLOW_TRAINER_SERVER_TOKEN": "/var/run/secrets/kubeflow/trainer/token",
}
SWITCH = "DISABLE_KUBEFLOW_INTEGRATION"


def found(
    variables: Mapping[str, str], *packages: str, tells_steps: bool = True
) -> tuple[Server | None, list[str]]:
    said = list[str]()
    return server_of(variables, packages, tells_steps=tells_steps, say=said.append), said


def ended(controller: Controller, *, has_finished: bool = False) -> list[str]:
    """What is said by a launcher that ends. It posts once where that is taken."""
    said = list[str]()
    server, why = found(controller.variables)
    assert server is not None, why

    completion = WorkerCompletion(shown)
    completion.is_finished = has_finished
    asyncio.run(TrainJobPosts(server, shown, completion, said.append).end())
    return said


def at_start(controller: Controller) -> list[str]:
    """What is said of the files before anything is posted."""
    said = list[str]()
    server = Server(controller.url, str(controller.ca), str(controller.token))
    TrainJobPosts(server, shown, WorkerCompletion(shown), said.append)
    return said


async def shown() -> dict[str, Any]:
    return status(node(0))


# --- what is set ---------------------------------------------------------------------------------------------------------


def test_outside_of_a_train_job_nothing_is_posted_or_said() -> None:
    assert found({}) == (None, [])


def test_what_the_controller_sets_is_enough() -> None:
    server, said = found(SET, "torch", "transformers")
    assert server == Server(*SET.values())
    assert said == []


@pytest.mark.parametrize(
    "url",
    ["http://trainer/status", "trainer/status", "https://", "https:///status", "https://a:b/", "https://a b/", "https://[/"],
)  # fmt: skip
def test_what_is_no_https_address_is_named_and_ends_nothing(url: str) -> None:
    server, [line] = found({**SET, "KUBEFLOW_TRAINER_SERVER_URL": url})
    assert server is None
    assert "KUBEFLOW_TRAINER_SERVER_URL must be an https:// URL" in line
    assert repr(url) in line


def test_a_password_in_a_url_is_not_shown() -> None:
    server, [line] = found({**SET, "KUBEFLOW_TRAINER_SERVER_URL": "https://me:hidden@trainer/"})
    assert server is None
    assert "hidden" not in line


def test_a_url_without_a_token_is_named() -> None:
    server, [line] = found({**SET, "KUBEFLOW_TRAINER_SERVER_TOKEN": ""})
    assert server is None
    assert "KUBEFLOW_TRAINER_SERVER_TOKEN, the path of a token" in line


@pytest.mark.parametrize(
    ("variables", "packages", "tells_steps", "why"),
    [
        ({SWITCH: "FALSE"}, (), True, "DISABLE_KUBEFLOW_INTEGRATION=FALSE"),
        ({}, ("kubeflow",), True, "it imports kubeflow"),
        ({}, (), False, "it tells its steps to nobody else"),
    ],
)
def test_the_status_has_one_author(
    variables: dict[str, str], packages: tuple[str, ...], why: str, *, tells_steps: bool
) -> None:
    server, [line] = found({**SET, **variables}, *packages, tells_steps=tells_steps)
    assert server is None
    assert line == f"the status of the TrainJob is left to the script: {why}"


@pytest.mark.parametrize("switch", ["TRUE", "true"])
def test_who_has_switched_the_script_off_already_has_the_launcher_post(switch: str) -> None:
    server, said = found({**SET, SWITCH: switch})
    assert server is not None
    assert said == []
    assert for_processes(SET)[SWITCH] == "TRUE"


# --- what a server does --------------------------------------------------------------------------------------------------


def test_a_finished_job_is_posted_with_the_token_of_the_moment(controller: Controller) -> None:
    controller.listen()
    assert ended(controller, has_finished=True) == []
    controller.token.write_text("the-next-token")
    assert ended(controller, has_finished=True) == []
    assert controller.tokens == [f"Bearer {TOKEN}", "Bearer the-next-token"]
    assert [one["progressPercentage"] for one in controller.statuses] == [100, 100]


@pytest.mark.slow
@pytest.mark.parametrize(("code", "reason"), [(403, "Forbidden"), (500, "")])
def test_a_refusal_is_said_once_with_its_reason_and_tried_again(
    controller: Controller, code: int, reason: str
) -> None:
    controller.listen()
    controller.answer = (code, {"kind": "Status", "message": reason})
    line, last = ended(controller)
    assert f"it answers {code}{': ' if reason else ''}{reason}; it is tried again" in line
    assert "where the job stands is not in its status" in last
    assert TOKEN not in line + last


@pytest.mark.slow
def test_nothing_is_sent_where_a_server_points(controller: Controller) -> None:
    controller.listen()
    controller.answer, controller.location = (307, {"message": "elsewhere"}), controller.url
    line, _ = ended(controller)
    assert "it answers 307" in line


@pytest.mark.slow
def test_a_server_that_hangs_holds_nobody_up(controller: Controller) -> None:
    controller.listen()
    controller.goes_on.clear()
    line, last = ended(controller)
    assert "no answer in time; it is tried again" in line
    assert "the end was not posted" in last


@pytest.mark.slow
def test_a_server_that_is_not_there_is_said_once(controller: Controller) -> None:
    line, last = ended(controller)
    assert "Connection refused" in line
    assert "the end was not posted" in last


@pytest.mark.slow
def test_a_server_of_another_authority_gets_no_token(controller: Controller, tmp_path: Path) -> None:
    controller.listen()
    other = tmp_path / "other"
    other.mkdir()
    stranger = Controller(other)
    controller.ca.write_bytes(stranger.ca.read_bytes())
    stranger.close()
    line, _ = ended(controller)
    assert "certificate verify failed" in line
    assert controller.tokens == []


@pytest.mark.slow
def test_a_finished_job_is_posted_once_the_server_is_back(controller: Controller) -> None:
    controller.listen()
    controller.answer = (503, {"message": "not yet"})

    def take() -> None:
        controller.answer = (200, {})

    controller.after_post = take
    [line] = ended(controller, has_finished=True)
    assert "it answers 503: not yet; it is tried again" in line
    assert [one["progressPercentage"] for one in controller.statuses] == [100, 100]


@pytest.mark.parametrize("content", ["", "two words", "a\nb", "\x01", "ü"])
def test_what_is_no_token_is_named_before_the_first_step_and_not_shown(
    controller: Controller, content: str
) -> None:
    controller.token.write_text(content)
    [line] = at_start(controller)
    assert f"KUBEFLOW_TRAINER_SERVER_TOKEN={controller.token}" in line
    assert not content or content not in line.replace(str(controller.token), "")


@pytest.mark.parametrize("name", ["ca", "token"])
def test_a_file_that_is_missing_is_named_before_the_first_step(controller: Controller, name: str) -> None:
    path: Path = getattr(controller, name)
    path.unlink()
    [line] = at_start(controller)
    assert f"={path} " in line
    assert "No such file or directory" in line


def test_files_are_read_again_for_every_post(controller: Controller) -> None:
    controller.listen()
    content = controller.ca.read_bytes()
    said = list[str]()
    server = Server(controller.url, str(controller.ca), str(controller.token))

    controller.ca.write_text("no certificate")
    posts = TrainJobPosts(server, shown, WorkerCompletion(shown), said.append)
    [line] = said
    assert f"KUBEFLOW_TRAINER_SERVER_CA_CERT={controller.ca} cannot be used" in line
    controller.ca.write_bytes(content)
    asyncio.run(posts.end())
    assert said == [line]
    assert len(controller.statuses) == 1
