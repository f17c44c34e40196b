"""What the pods run is read by what is to run it: our own command lines, our own reader of variables, a real Python."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from recovery import config
from recovery.cli import torchrun_line
from recovery.cli.main import load
from recovery.cli.start import is_typed
from recovery.core.ids import NodeId
from recovery.launch import placement
from recovery.launch.job_spec import Host, JobSpec
from recovery.transport.inspection_server import HEALTH_PATH
from tests.kubernetes.rendered import LINES, TASK, pod_of, pods_of, run, text_of

POD = {"MS_WORKER_IP": "10.1.2.3", "MS_JOB_TOKEN": "a" * 64, "POD_INDEX": "1"}


def replaced(text: str, known: Mapping[str, str]) -> str:
    """As Kubernetes documents it: $(NAME) is replaced where NAME is known, $$ is one $, and any other $ stays."""
    tokens = re.findall(r"\$\$|\$\([^)]*\)|.", text, re.DOTALL)
    plain = {"$$": "$", **{f"$({name})": value for name, value in known.items()}}
    return "".join(plain.get(token, token) for token in tokens)


def environment_of(pod: dict[str, Any]) -> dict[str, str]:
    """What the container of a pod finds."""
    found: dict[str, str] = {}
    for one in pod["spec"]["containers"][0]["env"]:
        assert one["name"] not in found
        found[one["name"]] = replaced(one["value"], found) if "value" in one else POD[one["name"]]
    return found


def command_of(pod: dict[str, Any]) -> list[str]:
    return [replaced(word, environment_of(pod)) for word in pod["spec"]["containers"][0]["command"]]


def launched(pod: dict[str, Any]) -> JobSpec:
    """What a host's launcher reads from its command line, by the command's own parser."""
    program, command, *words = command_of(pod)
    assert (program, command) == ("recovery", "run")
    context = load("run").make_context("run", words)
    given = {name: value for name, value in context.params.items() if is_typed(context, name)}
    task = given.pop("task")
    machine = torchrun_line.Machine(
        processors=8, devices=lambda _word: 0, free_port=1, environment=environment_of(pod)
    )
    line = torchrun_line.read(given, task, machine)
    assert line.notes == ()
    return line.spec


def host_of(address: str) -> Host:
    return Host(
        name="pod", address=address, owns_master_addr=False, interpreter="python3", cpus=(0,), numa_nodes=(0,)
    )


@pytest.mark.parametrize("name", LINES)
def test_a_host_starts_its_part_of_the_job_and_no_scheduler(name: str) -> None:
    pod = next(
        pod
        for pod in reversed(pods_of(text_of(name)))
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "host"
    )

    spec = launched(pod)

    assert (spec.worker_num, spec.local_worker_num, spec.node_rank) == (8, 4, 1)
    assert (spec.master_addr, spec.master_port) == ("resnet-scheduler", 8118)
    assert spec.cluster_time_out == 1800
    assert spec.task[-len(TASK) + 1 :] == TASK[1:]
    placed = placement.place(
        spec, host_of(POD["MS_WORKER_IP"]), placement.Script(supervised=False, world_of="")
    )
    workers = [one for one in placed if one.rank is not None]
    assert [one.rank for one in workers] == [4, 5, 6, 7]
    for process in placed:
        settings = config.load(placement.environment_of(process, environment_of(pod), restarts=0))
        assert settings.sched_host == "resnet-scheduler"
        assert settings.worker_host == POD["MS_WORKER_IP"]
        assert settings.warnings == ()


@pytest.mark.parametrize("name", LINES)
def test_the_scheduler_serves_the_same_job(name: str) -> None:
    pod, host = pod_of(text_of(name), "scheduler"), launched(pod_of(text_of(name), "host"))
    assert command_of(pod) == ["recovery", "scheduler"]

    settings = config.load({**environment_of(pod), "MS_ROLE": "MS_SCHED"})

    assert settings.rules.worker_count == host.worker_num
    assert settings.sched_port == host.master_port
    assert settings.sched_host == "0.0.0.0"
    assert settings.rules.topology_timeout_ms == host.cluster_time_out * 1000
    assert str(settings.recovery_path) == "/state/recovery"
    mount, *_ = pod["spec"]["containers"][0]["volumeMounts"]
    assert str(settings.recovery_path).startswith(f"{mount['mountPath']}/")


def test_all_processes_agree_on_what_the_scheduler_compares() -> None:
    pods = pods_of(text_of("job_object"))

    assert {environment_of(pod)["MS_SERVER_NUM"] for pod in pods} == {"2"}
    assert {environment_of(pod)["MS_ENABLE_RECOVERY"] for pod in pods} == {"1"}


def test_all_that_spare_hosts_run_may_wait() -> None:
    text = text_of("jobset_shared")
    assert "--spares=2" in command_of(pod_of(text, "host"))

    scheduler = {**environment_of(pod_of(text, "scheduler")), "MS_ROLE": "MS_SCHED"}

    # Two hosts of four, and whoever comes back to a rank that one of them has taken.
    assert config.load(scheduler).rules.standby_count == 2 * 4 + 8


def test_a_parameter_server_registers_as_one() -> None:
    pod = pod_of(text_of("job_object"), "server")

    settings = config.load(environment_of(pod))

    assert settings.role is config.SettingsRole.SERVER
    assert settings.node_id == NodeId("server-1")
    assert settings.rules.server_count == 2


@pytest.mark.parametrize("name", LINES)
def test_ids_come_from_what_a_pod_keeps(name: str) -> None:
    for pod in pods_of(text_of(name)):
        index = [one for one in pod["spec"]["containers"][0]["env"] if one["name"] == "POD_INDEX"]
        for one in index:
            path = one["valueFrom"]["fieldRef"]["fieldPath"] if "valueFrom" in one else "its own claim"
            assert path in (
                "metadata.annotations['jobset.sigs.k8s.io/job-index']",
                "metadata.annotations['batch.kubernetes.io/job-completion-index']",
                "its own claim",
            )


def test_hosts_with_a_claim_each_have_its_number() -> None:
    hosts = [pod for pod in pods_of(text_of("jobset_claims")) if "host" in pod["metadata"]["labels"].values()]

    for number, pod in enumerate(hosts):
        assert environment_of(pod)["POD_INDEX"] == str(number)
        [claim] = [
            one["persistentVolumeClaim"] for one in pod["spec"]["volumes"] if "persistentVolumeClaim" in one
        ]
        assert claim == {"claimName": f"resnet-host-{number}"}
    assert len(hosts) == 2


def test_what_a_user_types_comes_as_it_was_typed() -> None:
    text = run(
        "--name=a", "--image=a", "--env=NOTE=$(POD_INDEX) costs $5 or $$6", task=("train.py", "--to=$(HOME)")
    ).text
    pod = pod_of(text, "host")

    assert environment_of(pod)["NOTE"] == "$(POD_INDEX) costs $5 or $$6"
    assert launched(pod).task == ("train.py", "--to=$(HOME)")


def test_a_pod_has_longer_than_its_launcher_gives() -> None:
    pod = pod_of(run("--name=a", "--image=a", "--grace=90").text, "host")

    assert environment_of(pod)["MS_STOP_GRACE"] == "90"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 100


def notice(text: str, place: Path, port: int) -> subprocess.CompletedProcess[str]:
    """What the hook of a host's pod says and does, without its waits."""
    pod = pod_of(text, "host")
    _, *words, code = pod["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    noticed = environment_of(pod)["MS_NOTICE_FILE"]
    here = code.replace(noticed, str(place)).replace('("a-scheduler", 8118)', f'("127.0.0.1", {port})')
    return subprocess.run(
        [sys.executable, *words, here.replace("time.sleep", "print")],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_pod_that_is_to_go_notes_it_where_its_launcher_looks(tmp_path: Path) -> None:
    text, place = run("--name=a", "--image=a", "--grace=90").text, tmp_path / "preempted"

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert notice(text, place, port).stdout.split() == ["3"]
    assert place.read_text() == "90"
    # Without a scheduler nothing can be saved together: the script has the time for itself.
    assert notice(text, place, port).stdout.split() == ["90", "3"]
    # The hosts need it until they have saved.
    sleep = pod_of(text, "scheduler")["spec"]["containers"][0]["lifecycle"]["preStop"]["sleep"]
    assert sleep == {"seconds": 90}


def wait_for(port: int, wait_s: int) -> subprocess.CompletedProcess[str]:
    pod = pod_of(run("--name=a", "--image=a", f"--port={port}", f"--wait={wait_s}").text, "host")
    [init] = pod["spec"]["initContainers"]
    _, *words, code = init["command"]
    here = code.replace('("a-scheduler"', '("127.0.0.1"')
    return subprocess.run(
        [sys.executable, *words, here], capture_output=True, text=True, check=False, timeout=60
    )


def test_a_host_begins_when_the_scheduler_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert wait_for(port, 60).returncode == 0

    ended = wait_for(port, 1)
    assert ended.returncode == 1
    assert f"a-scheduler:{port} does not answer" in ended.stderr


@pytest.mark.parametrize("name", LINES)
def test_the_scheduler_is_asked_how_it_is(name: str) -> None:
    [container] = pod_of(text_of(name), "scheduler")["spec"]["containers"]
    has_tls = {"name": "MS_ENABLE_SSL", "value": "1"} in container["env"]
    assert has_tls == (name in ("jobset_without_restart_job", "job_claimed"))

    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]
        assert asked.get("tcpSocket") == ({"port": 8118} if has_tls else None)
        assert asked.get("httpGet") == (None if has_tls else {"path": HEALTH_PATH, "port": 8118})


@pytest.mark.parametrize("name", LINES)
def test_the_first_lines_of_a_file_make_it_again(name: str) -> None:
    text = text_of(name)
    command = "\n".join(
        line.removeprefix("# ") for line in text.splitlines() if line.startswith(("# made by", "#  "))
    )

    _, _, *words = shlex.split(command.removeprefix("made by: ").replace("\\\n", ""))
    flags, task = words[1 : words.index("--")], words[words.index("--") + 1 :]
    assert run(*flags, task=tuple(task)).text == text
