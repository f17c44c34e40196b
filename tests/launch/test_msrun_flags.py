"""Every flag of msrun, every bad value with its exact message, before anything starts."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recovery.cli.main import app
from recovery.errors import RecoveryError, UsageError
from recovery.launch.job_spec import DryRun, Rejoin, Restart, StartMethod
from recovery.launch.msrun.bindings import Bindings
from recovery.launch.msrun.flags import FLAGS
from tests.launch.typed import job

SCRIPT = "train.py"


def test_defaults_are_those_of_msrun() -> None:
    given = job([SCRIPT])

    assert (given.worker_num, given.local_worker_num) == (8, 8)
    assert (given.master_addr, given.master_port, given.node_rank) == ("127.0.0.1", 8118, -1)
    assert (given.log_dir, given.join, given.cluster_time_out) == (Path(), False, 600)
    assert (given.bind, given.dry_run) == (Bindings(core=False, numa=False, workers=8), None)
    assert (given.variables, given.worker_log_name, given.tail_worker_log) == ({}, "worker", None)
    assert (given.rejoin, given.standby_num) == (Rejoin.NEW, 0)
    assert (given.max_restarts, given.task) == (3, (SCRIPT,))


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--worker_num=4"], "worker_num", 4),
        (["--worker-num", "4"], "worker_num", 4),
        (["--worker_num=4"], "local_worker_num", 4),
        (["--local_worker_num=2"], "local_worker_num", 2),
        (["--nproc-per-node=2"], "local_worker_num", 2),
        (["--nproc_per_node=2", "--nnodes=3"], "worker_num", 6),
        (["--master_addr=10.0.0.7"], "master_addr", "10.0.0.7"),
        (["--master-addr=::1"], "master_addr", "::1"),
        (["--master_addr=[fe80::1]"], "master_addr", "fe80::1"),
        (["--master_addr=node-1.cluster"], "master_addr", "node-1.cluster"),
        (["--master_port=1024"], "master_port", 1024),
        (["--master-port=65535"], "master_port", 65535),
        (["--node_rank=1", "--local_worker_num=4"], "node_rank", 1),
        (["--node-rank=-1"], "node_rank", -1),
        (["--log_dir=a/b"], "log_dir", Path("a/b")),
        (["--join=True"], "join", True),
        (["--cluster_time_out=-1"], "cluster_time_out", -1),
        (["--bind_core=True"], "bind", Bindings(core=True, numa=False, workers=8)),
        (
            ['--bind_core={"device0": ["0-1,3"]}'],
            "bind",
            Bindings(core={"device0": ["0-1,3"]}, numa=False, workers=8),
        ),
        (
            ['--bind_numa={"scheduler": ["0"]}'],
            "bind",
            Bindings(core=False, numa={"scheduler": ["0"]}, workers=8),
        ),
        (["--sim_level=3"], "dry_run", DryRun(3, 0)),
        (["--sim_level=3", "--sim_rank_id=7"], "dry_run", DryRun(3, 7)),
        (["--sim_rank_id=7"], "dry_run", None),
        (["--rank_table_file=t.json"], "variables", {"RANK_TABLE_FILE": "t.json"}),
        (["--worker_log_name=w_{ip}_{hostname}"], "worker_log_name", "w_{ip}_{hostname}"),
        (["--tail_worker_log=0,3"], "tail_worker_log", (0, 3)),
        (["--tail_worker_log=-1"], "tail_worker_log", None),
        (["--max-restarts=0"], "max_restarts", 0),
        (["--tee=3"], "tail_worker_log", None),
        (["--signals_to_handle=SIGUSR1,usr2"], "signals_to_handle", (signal.SIGUSR1, signal.SIGUSR2)),
        (["--tee=0"], "tail_worker_log", ()),
        (["--tee=0:3,2:1,1:0"], "tail_worker_log", (0, 2)),
        (["--restart=world"], "restart", Restart.WORLD),
        (["--rejoin=same"], "rejoin", Rejoin.SAME),
        (["--rejoin=proof"], "rejoin", Rejoin.PROOF),
        (["--standby-num=2"], "standby_num", 2),
        (["--enable_ssl=True"], "variables", {"MS_ENABLE_SSL": "1"}),
        (["--config-file-path=/c.json"], "variables", {"MS_CONFIG_FILE_PATH": "/c.json"}),
        (["--client-password-file=/c"], "variables", {"MS_CLIENT_PASSWORD_FILE": "/c"}),
        (["--continue=True"], "continue_run", True),
        (["--progress=False"], "progress", False),
        (["--start-method=spawn"], "start_method", StartMethod.SPAWN),
    ],
)
def test_every_flag_is_read(words: list[str], field: str, value: Any) -> None:
    assert getattr(job([*words, SCRIPT]), field) == value


MISTAKES = {
    "--worker_num=0": "SETTING_RANGE: --worker_num='0': must be greater than 0. Give, for example, --worker_num=8.",
    "--worker_num=four": "SETTING_TYPE: --worker_num='four': must be a whole number. Give, for example, --worker_num=4.",
    "--local_worker_num=0": "SETTING_RANGE: --local_worker_num='0': must be greater than 0. Give, for example, --local_worker_num=8.",
    "--local_worker_num=9": "SETTING_CONFLICT: --local_worker_num=9: is more than --worker_num=8, the workers of all hosts together. Lower it, or raise --worker_num.",
    "--nnodes=2": "SETTING_CONFLICT: --nnodes=2: goes with --nproc_per_node, and without --worker_num, which it replaces. Give --nnodes and --nproc_per_node, or --worker_num and --local_worker_num.",
    "--nnodes=0": "SETTING_RANGE: --nnodes='0': must be greater than 0. Give, for example, --nnodes=2.",
    "--master_addr=300.1.1.1": "SETTING_RANGE: --master_addr='300.1.1.1': must be an IPv4 address, an IPv6 address or a host name. Give, for example, --master_addr=192.168.1.10.",
    "--master_addr=fe80:::1": "SETTING_RANGE: --master_addr='fe80:::1': must be an IPv4 address, an IPv6 address or a host name. Give, for example, --master_addr=192.168.1.10.",
    "--master_addr=": "SETTING_RANGE: --master_addr='': must be an IPv4 address, an IPv6 address or a host name. Give, for example, --master_addr=192.168.1.10.",
    "--master_port=1023": "SETTING_RANGE: --master_port='1023': must be from 1024 to 65535. Give, for example, --master_port=8118.",
    "--master_port=65536": "SETTING_RANGE: --master_port='65536': must be from 1024 to 65535. Give, for example, --master_port=8118.",
    "--node_rank=-2": "SETTING_RANGE: --node_rank='-2': must be 0 or more, or -1 for automatic ranks. Give, for example, --node_rank=0.",
    "--log_dir=": "SETTING_RANGE: --log_dir='': must be a path. Give, for example, --log_dir=logs.",
    "--join=yes": "SETTING_RANGE: --join='yes': must be True or False. Give, for example, --join=True.",
    "--cluster_time_out=soon": "SETTING_TYPE: --cluster_time_out='soon': must be a whole number. Give, for example, --cluster_time_out=4.",
    "--bind_core=1-3": "SETTING_RANGE: --bind_core='1-3': must be True, False or a JSON object. Give, for example, --bind_core='{\"device0\": [\"0-3\"]}'.",
    '--bind_core={"dev0": ["1"]}': "SETTING_RANGE: --bind_core='dev0': must be an object whose keys are scheduler or device<n>. Give, for example, --bind_core='{\"device0\": [\"0-3\"]}'.",
    '--bind_core={"device0": "1"}': 'SETTING_RANGE: --bind_core=\'device0: 1\': must be an object whose values are lists like ["0-3"], ["5"] or ["1,2"]. Give, for example, --bind_core=\'{"device0": ["0-3"]}\'.',
    '--bind_core={"device0": ["1-"]}': 'SETTING_RANGE: --bind_core="device0: [\'1-\']": must be an object whose values are lists like ["0-3"], ["5"] or ["1,2"]. Give, for example, --bind_core=\'{"device0": ["0-3"]}\'.',
    "--bind_numa=maybe": "SETTING_RANGE: --bind_numa='maybe': must be True, False or a JSON object. Give, for example, --bind_numa='{\"device0\": [\"0-3\"]}'.",
    "--sim_level=4": "SETTING_RANGE: --sim_level='4': must be from 0 to 3, or -1 for none. Give, for example, --sim_level=1.",
    "--sim_rank_id=8": "SETTING_CONFLICT: --sim_rank_id=8: there are 8 workers, so ranks end at 7. Give a rank that exists, or raise --worker_num.",
    "--sim_rank_id=-2": "SETTING_RANGE: --sim_rank_id='-2': must be a rank, or -1 for rank 0. Give, for example, --sim_rank_id=0.",
    "--rank_table_file=": "SETTING_RANGE: --rank_table_file='': must be a path. Give, for example, --rank_table_file=logs.",
    "--worker_log_name=a/b": "SETTING_RANGE: --worker_log_name='a/b': must be a file name that may hold {ip} and {hostname}. Give, for example, --worker_log_name=worker_{hostname}.",
    "--worker_log_name={rank}": "SETTING_RANGE: --worker_log_name='{rank}': must be a file name that may hold {ip} and {hostname}. Give, for example, --worker_log_name=worker_{hostname}.",
    "--tail_worker_log=0;1": "SETTING_RANGE: --tail_worker_log='0;1': must be -1 for all, or ranks with commas. Give, for example, --tail_worker_log=0,3.",
    "--signals_to_handle=SIGKILL": "SETTING_RANGE: --signals_to_handle='SIGKILL': must be names of signals that a process can handle, with commas. Give, for example, --signals_to_handle=SIGUSR1,SIGUSR2.",
    "--tee=4": "SETTING_RANGE: --tee='4': must be 0, 1, 2 or 3, or ranks with one of them. Give, for example, --tee=0:3,1:3.",
    "--restart=host": "SETTING_RANGE: --restart='host': must be auto, worker or world. Give, for example, --restart=world.",
    "--start_method=thread": "SETTING_RANGE: --start_method='thread': must be auto, fork or spawn. Give, for example, --start_method=spawn.",
    "--max_restarts=-1": "SETTING_RANGE: --max_restarts='-1': must be from 0 to 1000. Give, for example, --max_restarts=3.",
    "--rejoin=now": "SETTING_RANGE: --rejoin='now': must be new, same or proof. Give, for example, --rejoin=new.",
    "--enable_ssl=1": "SETTING_RANGE: --enable_ssl='1': must be True or False. Give, for example, --enable_ssl=True.",
    "--config_file_path=": "SETTING_RANGE: --config_file_path='': must be a path. Give, for example, --config_file_path=logs.",
    "--client_password_file=": "SETTING_RANGE: --client_password_file='': must be a path. Give, for example, --client_password_file=logs.",
    "--server_password_file=": "SETTING_RANGE: --server_password_file='': must be a path. Give, for example, --server_password_file=logs.",
    "--continue_run=maybe": "SETTING_RANGE: --continue_run='maybe': must be True or False. Give, for example, --continue_run=True.",
    "--progress=no": "SETTING_RANGE: --progress='no': must be True or False. Give, for example, --progress=True.",
    "--standby_num=-1": "SETTING_RANGE: --standby_num='-1': must be from 0 to 1000. Give, for example, --standby_num=1.",
    "--spares=-1": "SETTING_RANGE: --spares='-1': must be from 0 to 1000. Give, for example, --spares=1.",
}


@pytest.mark.parametrize("word", MISTAKES)
def test_every_bad_value_is_refused_in_one_line(word: str) -> None:
    with pytest.raises(RecoveryError) as refused:
        job([word, SCRIPT])
    assert str(refused.value) == MISTAKES[word]


def test_every_flag_has_a_bad_value_here() -> None:
    tried = {word.partition("=")[0].removeprefix("--") for word in MISTAKES}
    assert tried == set(FLAGS)


def test_ranks_that_the_job_does_not_have_are_refused() -> None:
    with pytest.raises(
        RecoveryError, match=r"--node_rank=2: its ranks would be 8 to 11, but there are 8 workers"
    ):
        job(["--worker_num=8", "--local_worker_num=4", "--node_rank=2", SCRIPT])


def test_a_dry_run_has_no_standbys() -> None:
    with pytest.raises(RecoveryError, match=r"--standby_num=1: is for a job whose workers may be lost"):
        job(["--worker_num=2", "--sim_level=1", "--standby_num=1", SCRIPT])


def test_one_way_to_say_which_logs_are_shown() -> None:
    with pytest.raises(RecoveryError, match=r"--tee=.* says the same as --tail_worker_log"):
        job(["--tee=3", "--tail_worker_log=0", SCRIPT])


def test_nothing_to_start_is_refused() -> None:
    with pytest.raises(RecoveryError, match="task_script is missing"):
        job(["--worker_num=2"])


def test_what_comes_after_the_script_is_the_scripts_own() -> None:
    given = job(["--worker_num=2", "pytest", "-s", "-v", "train.py", "--join=perhaps"])
    assert given.task == ("pytest", "-s", "-v", "train.py", "--join=perhaps")


@pytest.mark.parametrize("word", ["--worker_nu=2", "--workers=2", "-w", "--log_dir"])
def test_an_unknown_shortened_or_empty_flag_is_a_usage_error(word: str) -> None:
    refused = CliRunner().invoke(app, ["msrun", "--worker_num=2", word])

    assert refused.exit_code == 2
    assert word.partition("=")[0] in refused.output


@pytest.mark.parametrize("flag", ["--log_dir", "--worker_log_name", "--config_file_path", "--worker_num"])
def test_a_flag_without_its_value_does_not_take_the_next_flag_for_one(flag: str) -> None:
    with pytest.raises(RecoveryError, match=rf"{flag}='--join=True': must be"):
        job([flag, "--join=True", SCRIPT])


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_names_every_flag(word: str) -> None:
    shown = CliRunner().invoke(app, ["msrun", "--worker_num=2", word])

    assert shown.exit_code == 0
    assert [f"--{name}" for name in FLAGS if f"--{name}" not in shown.output] == []
    assert "--nproc_per_node" in shown.output
    assert "--password" not in shown.output
    assert "--job_token" not in shown.output


def test_words_that_are_no_text_reach_the_script_as_they_are() -> None:
    given = job(["--log_dir=a\udcff", "t\udcff.py", "--", "-x\udcff"])
    assert (given.log_dir, given.task) == (Path("a\udcff"), ("t\udcff.py", "--", "-x\udcff"))


@pytest.mark.parametrize(
    "flag", ["password", "client_password", "client-password", "server_password", "job_token"]
)
@pytest.mark.parametrize("spelt", ["--{}=a canary", "--{}"])
def test_a_secret_is_no_argument_and_is_not_shown(flag: str, spelt: str) -> None:
    with pytest.raises(UsageError) as caught:
        job([spelt.format(flag), "--worker_num=1", SCRIPT])

    assert str(caught.value).startswith(
        f"USAGE: --{flag.replace('-', '_')}: every user of this host can read"
    )
    assert "canary" not in str(caught.value)


def test_what_the_script_takes_as_a_password_is_its_own_matter() -> None:
    assert job(["--worker_num=1", SCRIPT, "--password=x"]).task == (SCRIPT, "--password=x")
