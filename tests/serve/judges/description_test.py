"""schemathesis: what the server answers is what descriptions of the protocol say, ours and MLServer's."""

import json

from conftest import save_mlp
from stock import JUDGES, ROOT, call

import pytest


@pytest.fixture
def own(tmp_path, start):
    """Servers of its own, for models are unloaded."""
    save_mlp(tmp_path / "models" / "mlp")
    return start(tmp_path / "models", "--max-body", "8")


def schemathesis(description, server, *flags):
    out = call(JUDGES / "py" / "bin" / "st", "run", description, "--url", f"http://{server.http}", "--seed", "1", "--max-examples", "25", "--warnings", "off",
               "--suppress-health-check", "all", *flags, seconds=300)
    assert server.ask("GET", "/v2/health/live")[0] == 200 and server.process.poll() is None
    return out


def test_own_description(own, tmp_path):
    """All checks but one: data that fits the protocol need not fit the model."""
    schemathesis(ROOT / "docs" / "openapi.yaml", own, "--checks", "all", "--exclude-checks", "positive_data_acceptance")


def test_description_of_mlserver(own, tmp_path):
    """Of what MLServer describes, all that is inference: its checks of statuses know no 404 of a model's readiness."""
    description = json.loads((JUDGES / "mlserver-wheel" / "mlserver" / "rest" / "openapi" / "dataplane.json").read_text())
    description["paths"] = {path: one for path, one in description["paths"].items() if not path.rsplit("/", 1)[-1].startswith(("infer_stream", "generate"))}
    description["components"]["schemas"]["TensorData"] = {"type": "array"}  # it says "bytes" besides, which is no type
    (tmp_path / "dataplane.json").write_text(json.dumps(description))
    schemathesis(tmp_path / "dataplane.json", own, "--checks", "not_a_server_error,response_schema_conformance,content_type_conformance,unsupported_method,allow_header_conformance")
