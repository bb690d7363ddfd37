"""Other sides of many networks at once: a process for each, made ready in parallel (exports,
compiles, captures take minutes one after another), then asked one at a time, so that what is timed
has the GPU to itself.

    sides = Sides(jobs=8);  sides.start("bert_b1", onnx, "fp16", ["eager"], answers=file)
    sides.wait();  sides.device_us("bert_b1", "eager");  sides.close()

`helper` says whose: "torch" (torch_peer.py) or "jax" (jax_peer.py). `seconds` count from the first
start on, for all of them together: a side that is not ready by then is ended and told as an error,
one that has not begun is not begun, and the others stay. What a compiler measures on the GPU to
choose between candidates, it measures in its turn(), alone among the sides.
"""

import concurrent.futures
import contextlib
import fcntl
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
NAMES = {"torch": "PyTorch", "jax": "JAX"}
TURN = pathlib.Path(tempfile.gettempdir()) / f"obelisk-gpu-turn.{os.getuid()}"
SETTINGS = {  # unless the caller has set them
    "OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "2", "OBELISK_GPU_TURN": str(TURN),
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
SHARE = "XLA_CLIENT_MEM_FRACTION"  # of the GPU's memory, at most, for each process of JAX
OLD_SHARE = "XLA_PYTHON_CLIENT_MEM_FRACTION"  # both at once are an error


@contextlib.contextmanager
def turn():
    """The GPU for oneself, among the sides; given up when the process ends, however it does."""
    with open(os.environ["OBELISK_GPU_TURN"], "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Side:
    """One helper: questions and answers in lines of JSON."""

    def __init__(self, log, helper="torch", **settings):
        self.who = NAMES[helper]
        share = {} if OLD_SHARE in os.environ else {SHARE: "0.2"}
        self.process = subprocess.Popen(
            [sys.executable, HERE / f"{helper}_peer.py"], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=log, env={**SETTINGS, **share, **settings, **os.environ},
        )
        self.ways, self.version, self.made = [], "", {}

    def ask(self, question, seconds):
        """Errors: RuntimeError with what the helper said; it is ended when it takes too long."""
        late = threading.Event()
        def end():
            late.set()
            self.process.kill()
        timer = threading.Timer(seconds, end)
        timer.start()
        line, why = "", "its answer was cut short"
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError as broken:
            why = str(broken)
        finally:
            timer.cancel()
        if not line.endswith("\n"):
            if late.is_set():
                raise TimeoutError(f"{self.who} took more than {seconds:.3g} s")
            raise RuntimeError(f"{self.who}'s process ended: {why}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


class Sides:
    def __init__(self, jobs, seconds=240, log=subprocess.DEVNULL, helper="torch"):
        self.pool = concurrent.futures.ThreadPoolExecutor(jobs)
        self.seconds, self.log, self.helper, self.end = seconds, log, helper, None
        self.sides, self.pending, self.errors = {}, {}, {}

    def left(self):
        """Seconds until everything must be ready."""
        self.end = self.end or time.monotonic() + self.seconds
        return max(self.end - time.monotonic(), 0)

    def prepare(self, name, onnx, precision, ways, settings=None, **more):
        """A ready side, in this thread; `more` goes into the question."""
        seconds = self.left()
        if not seconds:
            raise TimeoutError(f"not begun: the others took more than {self.seconds:.3g} s")
        side = Side(self.log, self.helper, **(settings or {}))
        self.sides[name] = side
        question = {"model": str(onnx), "precision": precision, "ways": ways}
        question |= {k: str(v) if isinstance(v, pathlib.Path) else v for k, v in more.items() if v}
        try:
            side.made = side.ask(question, seconds)
        except TimeoutError:
            raise TimeoutError(f"{side.who} was not ready: all of them together took more than "
                               f"{self.seconds:.3g} s") from None
        side.ways, side.version = side.made["ways"], side.made["version"]

    def start(self, name, *how, before=None, **more):
        """Later, in a thread of the pool, after `before()`."""
        self.left()
        def work():
            if before:
                before()
            self.prepare(name, *how, **more)
        self.pending[name] = self.pool.submit(work)

    def settle(self, name):
        """Until one has got ready, or failed, or has no time left."""
        with contextlib.suppress(Exception):
            self.pending[name].result(self.left())

    def wait(self):
        """Until all are ready; what failed stands in `errors` by name."""
        for name, job in self.pending.items():
            try:
                job.result()
            except Exception as error:
                self.errors[name] = f"{type(error).__name__}: {error}"
        self.pending = {}

    def measure(self, name, way):
        """What the helper says of a way's runs back to back: `device_us`, a mean a row."""
        return self.sides[name].ask({"way": way}, 60)

    def device_us(self, name, way):
        return sorted(self.measure(name, way)["device_us"])

    def close(self):
        self.pool.shutdown(wait=True)
        for side in self.sides.values():
            try:
                side.process.stdin.close()
                side.process.wait(20)
            except (OSError, subprocess.TimeoutExpired):
                side.process.kill()
                side.process.wait()
