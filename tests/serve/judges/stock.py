"""Where scripts/judges.sh has put the programs that ask the server, and how they are called."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
JUDGES = ROOT / "build" / "judges"
HERE = Path(__file__).resolve().parent


def tool(name):
    path = JUDGES / name
    assert path.exists(), f"{path} is missing: scripts/judges.sh installs it"
    return str(path)


def call(*command, seconds=120, code=0, **options):
    """What a program printed; fails with it unless it ended with `code`."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, **options)
    assert done.returncode == code, f"{command[0]} ended with {done.returncode}\n{done.stdout[-6000:]}"
    return done.stdout


def protocol_descriptors(path):
    """Writes the descriptors of the gRPC service as its stock client carries them."""
    from google.protobuf import descriptor_pb2
    from tritonclient.grpc import service_pb2
    every = descriptor_pb2.FileDescriptorSet()

    def add(file):
        for one in file.dependencies:
            add(one)
        if file.name not in [have.name for have in every.file]:
            file.CopyToProto(every.file.add())
    add(service_pb2.DESCRIPTOR)
    path.write_bytes(every.SerializeToString())


def environment_without_proxies():
    return {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
