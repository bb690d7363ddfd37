"""KServe's own clients ask for one row, by HTTP and gRPC: ask_by_kserve.py HTTP GRPC MODEL. Prints the numbers, a line each."""

import asyncio
import json
import sys

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

http, grpc, model = sys.argv[1:]
x = np.array([[1, -2, 3, -4, 5, -6, 7, -8]], np.float32)


def request(binary):
    one = InferInput("x", list(x.shape), "FP32")
    one.set_data_from_numpy(x, binary_data=binary)
    return InferRequest(model, [one], request_id="one")


def told(way, answer):
    print(json.dumps({"way": way, "id": answer.id, "model": answer.model_name, "y": answer.outputs[0].as_numpy().ravel().tolist()}))


async def main():
    base = f"http://{http}"
    async with InferenceRESTClient(RESTConfig(protocol="v2", retries=0)) as client:
        assert await client.is_server_live(base) and await client.is_server_ready(base) and await client.is_model_ready(base, model)
        assert not await client.is_model_ready(base, "nobody")
        for binary in (False, True):
            told(f"http, binary {binary}", await client.infer(base, request(binary), model_name=model))
        try:
            await client.infer(base, request(False), model_name="nobody")
        except Exception as refused:
            assert "404" in str(refused), refused
    async with InferenceGRPCClient(grpc) as client:
        assert await client.is_server_live() and await client.is_server_ready() and await client.is_model_ready(model)
        for binary in (False, True):
            told(f"grpc, raw {binary}", await client.infer(request(binary)))


asyncio.run(main())
