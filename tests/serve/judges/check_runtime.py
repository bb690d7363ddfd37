"""KServe's classes read a runtime: check_runtime.py FILE. Prints its container as JSON; fails where a field is none of theirs."""

import json
import sys

import yaml
from kserve import models
from kubernetes import client

text = yaml.safe_load(open(sys.argv[1]))


def read(kind, value):
    """An object of that class; every key must be a field of it."""
    kind = kind[:1].lower() + kind[1:] if "[" in kind or "(" in kind else kind  # generators differ: List[…], list[…]
    if kind.startswith("list["):
        return [read(kind[5:-1], one) for one in value]
    if kind.startswith(("dict(", "dict[")):
        return {key: read(kind[5:-1].split(", ")[1], one) for key, one in value.items()}
    if kind in ("str", "int", "bool", "object", "float", "datetime"):
        if kind in ("str", "int", "bool"):
            assert isinstance(value, {"str": str, "int": int, "bool": bool}[kind]), (kind, value)
        return value
    found = getattr(models, kind, None) or getattr(client, kind)
    assert hasattr(found, "openapi_types"), kind
    names = {key: name for name, key in found.attribute_map.items()}
    assert set(value) <= set(names), (kind, set(value) - set(names))
    return found(**{names[key]: read(found.openapi_types[names[key]], one) for key, one in value.items()})


assert text["apiVersion"] == "serving.kserve.io/v1alpha1"
runtime = read(f"V1alpha1{text['kind']}", text)
container = runtime.spec.containers[0]
assert container.name == "kserve-container" and {"v2", "grpc-v2"} == set(runtime.spec.protocol_versions)
print(json.dumps(client.ApiClient().sanitize_for_serialization(container)))
