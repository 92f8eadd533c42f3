"""`python -m tests.launchers.manifests FOLDER`: examples/kubernetes against the projects' own schemas.

    FOLDER   the custom resource definitions of Kubeflow's Trainer (manifests/base/crds), the MPI Operator
             (manifests/base) and the training-operator (manifests/base/crds), as files of theirs

Needs PyYAML and jsonschema. A field that a schema does not know is an error; so that this is no empty claim,
each manifest is also checked with a field misspelt, which has to be found. Kubernetes' own kinds are parsed.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

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
                print(f"{path.name}: {kind[1]}: Kubernetes' own, parsed")
                continue
            schema = schemas.get(kind)
            said = "no schema" if schema is None else _look(document, schema)
            wrong = wrong or bool(said)
            print(f"{path.name}: {'/'.join(kind)}: {said or 'right, and a misspelt field is found'}")
    return int(wrong)


def _look(document: dict[str, Any], schema: dict[str, Any]) -> str:
    """What is wrong with a manifest; '' for nothing."""
    for error in jsonschema.Draft202012Validator(schema).iter_errors(document):
        return f"{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"
    for misspelt in _misspelt(document):
        if jsonschema.Draft202012Validator(schema).is_valid(misspelt):
            return "a misspelt field is not found"
    return ""


def _misspelt(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The manifest with one field of its spec, and one of a container of its, misspelt."""
    first = copy.deepcopy(document)
    name = next(iter(first["spec"]))
    first["spec"][f"{name}x"] = first["spec"].pop(name)
    yield first


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
