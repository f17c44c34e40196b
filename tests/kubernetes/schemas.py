"""The real schemas of all objects that are rendered, read as an API server reads them: a field that they do not name is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

KUBERNETES = "1.37.0"
FOLDER = Path(__file__).parent / "schemas"
CUSTOM = {
    "JobSet": "jobset",
    "TrainingRuntime": "trainingruntime",
    "ClusterTrainingRuntime": "trainingruntime",
    "TrainJob": "trainjob",
}
"""By kind, the file with its schema: the two runtimes differ in their scope alone."""


def validate(one: dict[str, Any]) -> None:
    """Raise where an object is not of its schema."""
    name = CUSTOM.get(one["kind"])
    if name is None:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
        return
    schema = closed(json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))
    # An API server knows what metadata is.
    schema["properties"]["metadata"] = {"type": "object"}
    jsonschema.Draft202012Validator(schema).validate(one)


def closed(schema: Any) -> Any:
    """The schema with every object closed for fields that it does not name: an API server prunes those in silence."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: {name: closed(one) for name, one in value.items()} if key == "properties" else closed(value)
        for key, value in schema.items()
    }
    is_open = found.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in found
    if found.get("type") == "object" and not is_open:
        found["additionalProperties"] = False
    return found
