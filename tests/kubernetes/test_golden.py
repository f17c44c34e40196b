"""What is rendered is what stands in the golden files, and each object is of its real schema.

`.venv/bin/python -m tests.kubernetes.write_golden` writes them again.
"""

from __future__ import annotations

import copy

import jsonschema
import kubernetes_validate
import pytest

from tests.kubernetes.rendered import GOLDEN, HOSTS, LINES, objects_of, run, text_of
from tests.kubernetes.schemas import validate


@pytest.mark.parametrize("name", LINES)
def test_a_line_gives_its_golden_file(name: str) -> None:
    assert text_of(name) == (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")


def test_every_golden_file_has_its_line() -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(LINES)


@pytest.mark.parametrize("name", LINES)
def test_every_object_is_of_its_schema(name: str) -> None:
    found = objects_of(text_of(name))

    assert len(found) >= 3
    for one in found:
        validate(one)


def test_the_schemas_refuse_a_field_that_they_do_not_name() -> None:
    for name in ("jobset_claims", "job_object", "trainjob_shared"):
        for one in objects_of(text_of(name)):
            broken = copy.deepcopy(one)
            broken["spec"]["replicas_of_nothing"] = 1
            with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
                validate(broken)


def test_the_schema_of_a_jobset_refuses_what_its_pods_cannot_have() -> None:
    [*_, job_set] = objects_of(text_of("jobset_claims"))
    pod = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]

    pod["spec"]["containers"][0]["livenessProbe"]["patience"] = 1
    with pytest.raises(jsonschema.ValidationError):
        validate(job_set)


def test_the_first_line_makes_the_same_file_again() -> None:
    text = text_of("jobset_claims")
    first = text.splitlines()[0]

    assert first.startswith("# made by: recovery k8s render --name=resnet ")
    assert run(*reversed(HOSTS)).text == text


@pytest.mark.parametrize("name", ["trainjob_shared", "trainjob_of_cluster"])
def test_a_train_job_names_its_runtime(name: str) -> None:
    [*_, runtime, train_job] = objects_of(text_of(name))
    reference = train_job["spec"]["runtimeRef"]

    assert runtime["apiVersion"].startswith(f"{reference['apiGroup']}/")
    assert (reference["kind"], reference["name"]) == (runtime["kind"], runtime["metadata"]["name"])
