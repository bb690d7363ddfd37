"""MLPerf LoadGen asks a model over HTTP: loadgen.py ADDRESS FOLDER. It decides when, and what the run was worth; FOLDER has its logs."""

import argparse
import array
import queue
import threading

import mlperf_loadgen as lg
import numpy as np
import tritonclient.http as triton

flags = argparse.ArgumentParser()
flags.add_argument("address")
flags.add_argument("folder")
flags.add_argument("--model", default="mlp")
flags.add_argument("--tenant", default="loadgen")
flags.add_argument("--rate", type=float, default=100)
flags.add_argument("--count", type=int, default=300)
flags.add_argument("--bound-ms", type=float, default=10)
flags.add_argument("--threads", type=int, default=8)
flags = flags.parse_args()

rows = np.random.default_rng(0).standard_normal((64, 1, 8), dtype=np.float32)
waiting = queue.Queue()


def ask():
    client = triton.InferenceServerClient(flags.address)
    while (sample := waiting.get()) is not None:
        x = triton.InferInput("x", [1, 8], "FP32")
        x.set_data_from_numpy(rows[sample.index])
        got = client.infer(flags.model, [x], headers={"x-tenant": flags.tenant}).as_numpy("y")
        data = array.array("B", got.tobytes())
        address, size = data.buffer_info()
        lg.QuerySamplesComplete([lg.QuerySampleResponse(sample.id, address, size)])
    client.close()


def issue(samples):
    for sample in samples:
        waiting.put(sample)


threads = [threading.Thread(target=ask) for _ in range(flags.threads)]
for one in threads:
    one.start()
settings = lg.TestSettings()
settings.scenario = lg.TestScenario.Server
settings.mode = lg.TestMode.PerformanceOnly
settings.server_target_qps = flags.rate
settings.server_target_latency_ns = int(flags.bound_ms * 1e6)
settings.min_query_count = flags.count
settings.min_duration_ms = 1000
output = lg.LogOutputSettings()
output.outdir = flags.folder
output.copy_summary_to_stdout = True
log = lg.LogSettings()
log.log_output = output
system = lg.ConstructSUT(issue, lambda: None)
samples = lg.ConstructQSL(len(rows), len(rows), lambda _: None, lambda _: None)
lg.StartTestWithLogSettings(system, samples, settings, log)
for _ in threads:
    waiting.put(None)
for one in threads:
    one.join()
lg.DestroyQSL(samples)
lg.DestroySUT(system)
