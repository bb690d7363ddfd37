"""The example programs of Triton's client repository, unchanged. They are in no package: OBELISK_TRITON_CLIENT names a checkout of github.com/triton-inference-server/client, without it they are skipped.

Left out, for what they ask is refused here by name: strings, sequences, CUDA shared memory, ensembles, a model's configuration from the client; and those that want a server called "triton", or a repository of eight models.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TensorProto, helper, save

EXAMPLES = Path(os.environ.get("OBELISK_TRITON_CLIENT", "none")) / "src" / "python" / "examples"
pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="OBELISK_TRITON_CLIENT names no checkout")


@pytest.fixture(scope="module")
def models_of_theirs(tmp_path_factory):
    """Sums and differences of sixteen numbers, as their model repository has them."""
    folder = tmp_path_factory.mktemp("examples") / "models"
    nodes = [helper.make_node(kind, ["INPUT0", "INPUT1"], [name]) for kind, name in (("Add", "OUTPUT0"), ("Sub", "OUTPUT1"))]
    for name, kind in (("simple", TensorProto.INT32), ("simple_int8", TensorProto.INT8)):
        save(folder / name, nodes, {one: (kind, ["batch", 16]) for one in ("INPUT0", "INPUT1")}, {one: (kind, ["batch", 16]) for one in ("OUTPUT0", "OUTPUT1")})
    return folder


@pytest.mark.parametrize("words", [
    ["grpc_explicit_int8_content_client"], ["grpc_explicit_int_content_client"], ["simple_grpc_aio_infer_client"], ["simple_grpc_async_infer_client"], ["simple_grpc_custom_args_client"],
    ["simple_grpc_infer_client"], ["simple_grpc_keepalive_client"], ["simple_grpc_shm_client"], ["simple_http_aio_infer_client"], ["simple_http_async_infer_client"], ["simple_http_infer_client"],
    ["simple_http_shm_client"], ["reuse_infer_objects_client", "-i", "http"], ["reuse_infer_objects_client", "-i", "grpc"]], ids=" ".join)
def test_example(models_of_theirs, start, words):
    server = start(models_of_theirs, "--no-verify", "--shared-memory")
    address = server.http if "http" in " ".join(words) else server.grpc
    done = subprocess.run([sys.executable, str(EXAMPLES / f"{words[0]}.py"), *words[1:], "-u", address], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert done.returncode == 0 and "FAIL" not in done.stdout and "Traceback" not in done.stdout, done.stdout
