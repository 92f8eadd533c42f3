"""`python -m tests.launchers.manifests FOLDER`: examples/kubernetes against the projects' own schemas.

    FOLDER   the custom resource definitions of Kubeflow's Trainer (manifests/base/crds), the MPI
             Operator (manifests/base/kubeflow.org_mpijobs.yaml) and, from its branch release-1.9, the
             training-operator (manifests/base/crds/kubeflow.org_pytorchjobs.yaml), as files of theirs

Needs PyYAML, jsonschema and kubernetes. A field that a schema does not know is an error; so that this is no
empty claim, each manifest is also checked with a field misspelt, which has to be found. Kubernetes' own kinds
go through its client's typed models, which drop what they do not know: nothing may be lost.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from kubernetes import client

EXAMPLES = Path(__file__).parents[2] / "examples" / "kubernetes"
_OWN = ("v1", "batch/v1")


def main(folder: str) -> int:
    """Check all manifests; 1 if one is wrong, or a schema is not there."""
    schemas = _schemas(Path(folder))
    wrong = False
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for document in filter(None, yaml.safe_load_all(path.read_text())):
            kind = (document["apiVersion"], document["kind"])
            if kind[0] in _OWN:
                said = _look(document, _round_trip)
            elif kind in schemas:
                said = _look(document, partial(_check, jsonschema.Draft202012Validator(schemas[kind])))
            else:
                said = "no schema"
            wrong = wrong or bool(said)
            print(f"{path.name}: {'/'.join(kind)}: {said or 'right, and a misspelt field is found'}")
    return int(wrong)


def _look(document: dict[str, Any], check: Callable[[dict[str, Any]], str]) -> str:
    """What is wrong with a manifest; '' for nothing."""
    if said := check(document):
        return said
    for misspelt in _misspelt(document):
        if not check(misspelt):
            return "a misspelt field is not found"
    return ""


def _check(validator: Any, document: dict[str, Any]) -> str:
    for error in validator.iter_errors(document):
        return f"{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"
    return ""


def _round_trip(document: dict[str, Any]) -> str:
    api = client.ApiClient()
    said = json.dumps(document)
    try:
        back = api.sanitize_for_serialization(
            api.deserialize(said, f"V1{document['kind']}", "application/json")
        )
    except ValueError as error:  # a field that has to be there
        return str(error)
    return "" if back == document else f"only this is known: {back}"


def _misspelt(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The manifest with one field misspelt: the first one of its body, and the first one of a container."""
    body = next(name for name in ("spec", "stringData", "data") if name in document)
    first = copy.deepcopy(document)
    if body == "spec":
        _misspell(first["spec"])
    else:
        _misspell(first)
    yield first
    second = copy.deepcopy(document)
    if (container := _container(second)) is not None:
        _misspell(container)
        yield second


def _misspell(fields: dict[str, Any]) -> None:
    name = next(name for name in reversed(fields) if name not in ("apiVersion", "kind"))
    fields[f"{name}x"] = fields.pop(name)


def _container(part: Any) -> dict[str, Any] | None:
    """The first container in a manifest."""
    if isinstance(part, dict):
        if isinstance(found := part.get("containers"), list):
            return found[0]  # type: ignore[no-any-return]
        part = list(part.values())
    if isinstance(part, list):
        return next(filter(None, map(_container, part)), None)
    return None


def _schemas(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    found = {}
    for path in folder.rglob("*.yaml"):
        for document in filter(None, yaml.safe_load_all(path.read_text())):
            if document.get("kind") != "CustomResourceDefinition":
                continue
            spec = document["spec"]
            for version in spec["versions"]:
                schema = version["schema"]["openAPIV3Schema"]
                _close(schema, top=True)
                found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def _close(schema: Any, *, top: bool = False) -> None:
    """Let objects have no fields but those that they are said to have; Kubernetes drops others silently."""
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    if isinstance(properties, dict):
        if not top and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        for value in properties.values():
            _close(value)
    if top:
        schema["properties"].setdefault("metadata", {})
        schema["additionalProperties"] = False
    for name in ("items", "additionalProperties"):
        _close(schema.get(name))
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)
        schema.pop("format", None)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
