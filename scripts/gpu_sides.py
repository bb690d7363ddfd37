"""PyTorch's side of many networks at once: a process for each, made ready in parallel (exports,
compiles, captures take minutes one after another), then asked one at a time, so that what is timed
has the GPU to itself.

    sides = Sides(jobs=8);  sides.start("bert_b1", onnx, "fp16", ["eager"], answers=file)
    sides.wait();  sides.device_us("bert_b1", "eager");  sides.close()
"""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import threading

HELPER = pathlib.Path(__file__).resolve().parent / "torch_peer.py"


class Side:
    """One helper: questions and answers in lines of JSON."""

    def __init__(self, log):
        few = {"TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "2"}
        self.process = subprocess.Popen(
            [sys.executable, HELPER], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=log, env=os.environ | {k: os.environ.get(k, v) for k, v in few.items()},
        )
        self.ways, self.version = [], ""

    def ask(self, question, seconds):
        """Errors: RuntimeError with what the helper said; it is ended when it takes too long."""
        late = threading.Timer(seconds, self.process.kill)
        late.start()
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError as broken:
            raise RuntimeError(f"PyTorch's process ended: {broken}") from broken
        finally:
            late.cancel()
        if not line:
            raise RuntimeError(f"PyTorch's process ended, or took more than {seconds} s")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


class Sides:
    def __init__(self, jobs, seconds=240, log=subprocess.DEVNULL):
        self.pool = concurrent.futures.ThreadPoolExecutor(jobs)
        self.seconds, self.log = seconds, log
        self.sides, self.pending, self.errors = {}, {}, {}

    def prepare(self, name, onnx, precision, ways, answers=None):
        """A ready side, in this thread."""
        side = Side(self.log)
        self.sides[name] = side
        question = {"model": str(onnx), "precision": precision, "ways": ways}
        if answers:
            question["answers"] = str(answers)
        made = side.ask(question, self.seconds)
        side.ways, side.version = made["ways"], made["version"]

    def start(self, name, *how, before=None, **more):
        """Later, in a thread of the pool, after `before()`."""
        def work():
            if before:
                before()
            self.prepare(name, *how, **more)
        self.pending[name] = self.pool.submit(work)

    def wait(self):
        """Until all are ready; what failed stands in `errors` by name."""
        for name, job in self.pending.items():
            try:
                job.result()
            except Exception as error:
                self.errors[name] = f"{type(error).__name__}: {error}"
        self.pending = {}

    def device_us(self, name, way):
        return sorted(self.sides[name].ask({"way": way}, 60)["device_us"])

    def close(self):
        self.pool.shutdown(wait=True)
        for side in self.sides.values():
            try:
                side.process.stdin.close()
                side.process.wait(20)
            except (OSError, subprocess.TimeoutExpired):
                side.process.kill()
                side.process.wait()
