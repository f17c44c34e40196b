"""What cannot work is refused before anything is written: field, value, rule and next step in one line, with a stable code."""

from __future__ import annotations

import pytest

from recovery.errors import SettingError
from tests.kubernetes.rendered import S3, run

JOB = ("--name=resnet", "--image=registry.example/resnet:1")
WRONG: dict[str, tuple[tuple[str, ...], str, str]] = {
    # What is typed; the code; words of the line.
    "no name": (("--image=a",), "SETTING_MISSING", "--name is missing"),
    "no image": (("--name=a",), "SETTING_MISSING", "--image is missing"),
    "a name in upper case": (("--name=ResNet", "--image=a"), "SETTING_RANGE", "--name='ResNet': must be a DNS label"),
    "a name with a dot": (("--name=a.b", "--image=a"), "SETTING_RANGE", "must be a DNS label"),
    "a name that begins with a digit": (("--name=1a", "--image=a"), "SETTING_RANGE", "with a letter first"),
    "a name that ends with a hyphen": (("--name=a-", "--image=a"), "SETTING_RANGE", "no hyphen last"),
    "a name too long with what is added": (
        ("--name=" + "a" * 44, "--image=a"),
        "SETTING_RANGE",
        "has 64 characters, and 63 are the most. Give one of at most 43 characters",
    ),
    "a name too long with many hosts": (
        ("--name=" + "a" * 47, "--image=a", "--nnodes=60000", "--kind=job", "--storage=shared"),
        "SETTING_RANGE",
        "Give one of at most 45 characters",
    ),
    "an image with a blank": (("--name=a", "--image=a b"), "SETTING_RANGE", "--image='a b': must be a text that prints"),
    "another kind": ((*JOB, "--kind=statefulset"), "SETTING_RANGE", "must be jobset, job or trainjob"),
    "no host": ((*JOB, "--nnodes=0"), "SETTING_RANGE", "--nnodes='0': must be from 1 to 65535"),
    "hosts that are no number": ((*JOB, "--nnodes=two"), "SETTING_TYPE", "--nnodes='two': must be a whole number"),
    "no worker": ((*JOB, "--nproc-per-node=0"), "SETTING_RANGE", "--nproc-per-node='0'"),
    "more workers than a world has": (
        (*JOB, "--kind=job", "--storage=shared", "--nnodes=60000", "--nproc-per-node=2"),
        "SETTING_RANGE",
        "are 120000 workers, and 65535 are the most",
    ),
    "spares less than none": ((*JOB, "--spares=-1"), "SETTING_RANGE", "--spares='-1'"),
    "spares without a way to the checkpoints": (
        (*JOB, "--spares=1"),
        "SETTING_CONFLICT",
        "--spares=1: takes ranks only with their checkpoints",
    ),
    "a grace of nothing": ((*JOB, "--grace=0"), "SETTING_RANGE", "--grace='0': must be from 1 to 86400"),
    "a port of the system": ((*JOB, "--port=80"), "SETTING_RANGE", "--port='80': must be from 1024 to 65535"),
    "accelerators less than none": ((*JOB, "--gpus=-1"), "SETTING_RANGE", "--gpus='-1'"),
    "negative memory": ((*JOB, "--memory=-1Gi"), "SETTING_RANGE", "--memory='-1Gi': must be a quantity"),
    "memory of nothing": ((*JOB, "--memory=0"), "SETTING_RANGE", "greater than 0"),
    "processors in words": ((*JOB, "--cpus=four"), "SETTING_RANGE", "--cpus='four'"),
    "shared memory above the memory": ((*JOB, "--memory=1Gi", "--shm=1Gi"), "SETTING_CONFLICT", "counts as memory"),
    "an accelerator without a domain": ((*JOB, "--gpu-resource=gpu"), "SETTING_RANGE", "name of an extended resource"),
    "a namespace with an underscore": ((*JOB, "--namespace=my_team"), "SETTING_RANGE", "--namespace='my_team'"),
    "a label that is none": ((*JOB, "--node-selector=gpu"), "SETTING_RANGE", "LABEL=VALUE"),
    "the scheduler's path on NFS": (
        (*JOB, "--access-mode=ReadWriteMany"),
        "SETTING_RANGE",
        "--access-mode='ReadWriteMany': must be ReadWriteOncePod or ReadWriteOnce",
    ),
    "a volume a host of one Job": (
        (*JOB, "--kind=job", "--storage=claims"),
        "SETTING_CONFLICT",
        "the pods of all hosts share their volumes",
    ),
    "no word of where checkpoints go": ((*JOB, "--kind=job"), "SETTING_MISSING", "checkpoints end with their pod"),
    "object storage without a URL": ((*JOB, "--storage=object"), "SETTING_MISSING", "--object-storage is missing"),
    "object storage that is no URL": ((*JOB, "--object-storage=bucket"), "SETTING_TYPE", "MS_CHECKPOINT_STORE"),
    "a claim that nobody mounts": ((*JOB, "--claim=c", "--storage=claims"), "SETTING_CONFLICT", "--claim='c'"),
    "too many volumes": ((*JOB, "--nnodes=257"), "SETTING_RANGE", "and kubectl apply can note 258048"),
    "more than RestartJob counts": (
        (*JOB, "--storage=shared", "--nnodes=1025"),
        "SETTING_RANGE",
        "--nnodes=1025: makes 1025 Jobs of one kind, and a JobSet with RestartJob has at most 1024",
    ),
    "spares above what RestartJob counts": ((*JOB, "--storage=shared", "--spares=2000"), "SETTING_RANGE", "--spares=2000"),
    "a runtime of no TrainJob": ((*JOB, "--cluster-runtime"), "SETTING_CONFLICT", "is of --kind=trainjob"),
    "RestartJob of no JobSet": ((*JOB, S3, "--kind=job", "--no-restart-job"), "SETTING_CONFLICT", "is of --kind=jobset"),
    "two PodGroups": ((*JOB, S3, "--kind=trainjob", "--pod-group"), "SETTING_CONFLICT", "--pod-group=True"),
    "a variable twice": ((*JOB, "--env=A=1", "--env=A=2"), "SETTING_CONFLICT", "A is given more than once"),
    "a variable without a value": ((*JOB, "--env=A"), "SETTING_RANGE", "--env='A': must be NAME=VALUE"),
    "a variable of ours": ((*JOB, "--env=MS_NODE_ID=7"), "SETTING_CONFLICT", "is set for each pod by this command"),
    "a variable that has its flag": ((*JOB, "--env=MS_STOP_GRACE=7"), "SETTING_CONFLICT", "Give --grace."),
    "the token": ((*JOB, "--env=MS_JOB_TOKEN=" + "a" * 32), "SETTING_CONFLICT", "name it by --token-secret"),
    "another secret": ((*JOB, "--env=AWS_SECRET_ACCESS_KEY=k"), "SETTING_CONFLICT", "name that by --env-from-secret"),
    "a variable misspelt": ((*JOB, "--env=MS_STEP_TIMEOT=7"), "SETTING_RANGE", "Did you mean MS_STEP_TIMEOUT?"),
    "a variable of ours with a wrong value": ((*JOB, "--env=MS_STEP_TIMEOUT=soon"), "SETTING_TYPE", "MS_STEP_TIMEOUT='soon'"),
    "two variables that exclude each other": ((*JOB, "--env=MS_NODE_TIMEOUT=2", "--env=MS_RETRY_INTERVAL_UPPER=5"), "SETTING_CONFLICT", "must be less than"),
    "a user that is root": ((*JOB, "--run-as=0"), "SETTING_RANGE", "--run-as='0'"),
    "TLS twice": ((*JOB, "--tls-secret=t", "--env=MS_ENABLE_SSL=1"), "SETTING_CONFLICT", "is set by --tls-secret"),
    "keys that a group may read": ((*JOB, "--tls-secret=t", "--run-as=1000"), "SETTING_CONFLICT", "--run-as=1000: lets its group read"),
    "an object's name in upper case": ((*JOB, "--token-secret=Token"), "SETTING_RANGE", "--token-secret='Token'"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_work_is_refused_by_name(what: str) -> None:
    typed, code, words = WRONG[what]

    text, error = run(*typed)

    assert text == ""
    assert isinstance(error, SettingError)
    assert error.code == code
    assert words in str(error)
    assert str(error).endswith((".", "?"))


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ((), "script is missing"),
        (("--epochs=10",), "the script comes first behind --"),
        (("train.py", "a\nb"), "words that print"),
    ],
)
def test_a_script_that_cannot_be_started_is_refused(task: tuple[str, ...], words: str) -> None:
    text, error = run(*JOB, task=task)

    assert text == ""
    assert words in str(error)


def test_an_error_shows_no_token() -> None:
    for name in ("MS_JOB_TOKEN", "WANDB_API_KEY"):
        assert "a" * 32 not in str(run(*JOB, f"--env={name}={'a' * 32}").error)


def test_variables_that_only_look_like_secrets_are_taken() -> None:
    for name in ("TOKENIZERS_PARALLELISM", "PAD_TOKEN_ID", "MS_CLIENT_PASSWORD_FILE", "AWS_ACCESS_KEY_ID"):
        assert run(*JOB, f"--env={name}=a").error is None


def test_names_that_just_fit_are_taken() -> None:
    for kind in ("jobset", "job", "trainjob"):
        name, error = "a" * 63, None
        while (
            error := run(f"--name={name}", "--image=a", f"--kind={kind}", "--storage=shared").error
        ) is not None:
            assert "63 are the most" in str(error)
            name = name[:-1]
        assert len(name) in range(40, 50)
