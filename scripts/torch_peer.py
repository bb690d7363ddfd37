"""PyTorch on a GPU as the other side: eager, eager in a CUDA Graph, torch.compile, max-autotune; copy.

    peer = Peer(module, inputs, "fp16");  peer.way("compile")() runs one inference

`python torch_peer.py` is the helper of `obelisk bench --against torch`: it reads questions and
answers in lines of JSON. A model NAME.onnx is run from NAME.torch.py beside it, which defines
make() -> (module, inputs), or, for the networks of gpu_models.py, by its name. A question for a
model may also ask for `answers`: a file of arrays, "0.in", "1.in" ... by the order of
`names`, and "0.out" ..., that the module gives in f32, before its arithmetic changes; "moved": how
far other inputs take each output, over its root mean square.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import sys
import time


class Refusal(Exception):
    """What the user can mend, and how."""

    def __init__(self, message, hint):
        super().__init__(message)
        self.hint = hint


def refusal_of_import(error):
    """Why there is no PyTorch here: it is not installed, or it does not load."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        message = f"PyTorch is not found in {sys.executable}"
    else:
        message = f"PyTorch does not load in {sys.executable}: {error}"
    mend = f"{sys.executable} -m pip install torch, or OBELISK_PYTHON=PATH of a Python with it"
    return Refusal(message, mend)


def answer_of(error):
    """An error as the other side prints it."""
    message = str(error) if isinstance(error, Refusal) else f"PyTorch: {type(error).__name__}: {error}"
    return {"error": message.splitlines()[0], "hint": getattr(error, "hint", "obelisk doctor")}


try:
    import torch
except (ImportError, OSError) as absent:
    if __name__ != "__main__":
        raise
    sys.stdin.readline()  # the parent reads why
    print(json.dumps(answer_of(refusal_of_import(absent))), flush=True)
    sys.exit()

WAYS = ("eager", "graph", "compile", "max-autotune")
MORE = ("copy",)  # a floor of memory traffic, where it is asked for
TYPES = {"keep": None, "fp32": None, "tf32": None, "fp16": torch.float16, "bf16": torch.bfloat16}


def take_turns():
    """What the compiler times to choose a kernel, it times alone on the GPU, among sides that get
    ready at once (gpu_sides.py)."""
    if not os.environ.get("OBELISK_GPU_TURN"):
        return
    with contextlib.suppress(ImportError):
        from torch._inductor.runtime.benchmarking import benchmarker
        import gpu_sides
        time_it = type(benchmarker).benchmark_gpu
        def alone(*words, **more):
            with gpu_sides.turn():
                return time_it(benchmarker, *words, **more)
        benchmarker.benchmark_gpu = alone


@contextlib.contextmanager
def numbers_made_on_the_gpu():
    """torch.tensor(NUMBER, device="cuda") fills a tensor there in place of copying from the host, which no CUDA graph may do: some
    versions of transformers make a mask of it in every call."""
    made = torch.tensor
    def tensor(data, *, dtype=None, device=None, **more):
        if more or not isinstance(data, (bool, int, float)) or torch.device(device or "cpu").type != "cuda":
            return made(data, dtype=dtype, device=device, **more)
        return torch.full((), data, dtype=dtype or made(data).dtype, device=device)
    torch.tensor = tensor
    try:
        yield
    finally:
        torch.tensor = made


class Peer:
    def __init__(self, module, inputs, precision="fp16"):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
            precision == "tf32"
        )
        self.dtype = TYPES[precision]
        self.module = module.cuda().eval()
        if self.dtype:
            self.module = self.module.to(self.dtype)
        self.inputs = tuple(
            t.cuda().to(self.dtype) if self.dtype and t.is_floating_point() else t.cuda()
            for t in inputs
        )

    def captured(self, call):
        """The call as one launch of a graph."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.inference_mode():
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.inference_mode():
            self.outputs = call()
        return graph.replay

    def copy(self):
        """A copy on the device that moves as many bytes as the module's inputs and outputs have."""
        with torch.inference_mode():
            out = self.module(*self.inputs)
        ports = (*self.inputs, *(out if isinstance(out, tuple) else (out,)))
        half = sum(t.numel() * t.element_size() for t in ports) // 2  # read, and as much written
        to, of = (torch.empty(half, dtype=torch.uint8, device="cuda") for _ in range(2))
        return lambda: to.copy_(of)

    def way(self, name):
        def eager():
            return self.module(*self.inputs)
        if name == "eager":
            return torch.inference_mode()(eager)
        if name == "graph":
            with numbers_made_on_the_gpu():
                return self.captured(eager)
        if name == "copy":
            return self.captured(self.copy())
        torch._dynamo.reset()
        take_turns()
        mode = {"compile": None, "max-autotune": "max-autotune-no-cudagraphs"}[name]
        compiled = torch.compile(self.module, mode=mode, fullgraph=False)
        with torch.inference_mode():
            compiled(*self.inputs)
        return self.captured(lambda: compiled(*self.inputs))


def device_us(call, count=20, row=10):
    """Means of `row` runs in a row, so that the host's latency is hidden."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(count):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(row):
            call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1000 / row)
    return times


def latencies_us(call, seconds):
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e6)
    return times


def load(model):
    """The module that an ONNX file was exported from, example inputs, their names."""
    model = pathlib.Path(model)
    script = model.with_suffix(".torch.py")
    if script.exists():
        spec = importlib.util.spec_from_file_location("peer_model", script)
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        return (*made.make(), ())[:3]  # the inputs' names may follow
    import gpu_models
    if model.stem in gpu_models.MODELS:
        return gpu_models.make(model.stem)
    raise Refusal(
        f"no PyTorch module is known for {model.name}: there is no {script.name} beside it",
        f"write {script.name} with make() -> (module, inputs)",
    )


def write_answers(file, module, inputs, names):
    """What the module means: in f32, without rounded products."""
    import numpy
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    def answers_of(arrays):
        with torch.inference_mode():
            answers = module(*(torch.from_numpy(a).cuda() for a in arrays))
        return [t.float().cpu().numpy() for t in (answers if isinstance(answers, tuple) else (answers,))]
    module, given = module.cuda(), [t.numpy() for t in inputs]
    others = [-a[(slice(None, None, -1),) * a.ndim].copy() if a.dtype.kind == "f" else (a + 1) % (a.max() + 1) for a in given]
    wanted, moved = answers_of(given), answers_of(others)
    arrays = {f"{k}.in": a for k, a in enumerate(given)} | {f"{k}.out": a for k, a in enumerate(wanted)}
    arrays["names"] = numpy.array(names)
    arrays["moved"] = numpy.array([abs(b - a).max() / max(float(numpy.sqrt((a.astype("f8") ** 2).mean())), 1e-30) for a, b in zip(wanted, moved)])
    numpy.savez(file, **arrays)


def main():
    ways, peer = {}, None
    out, sys.stdout = sys.stdout, sys.stderr  # whatever libraries print is no answer
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if "model" in question:
                if not torch.cuda.is_available():
                    raise Refusal(f"PyTorch of {sys.executable} finds no GPU", "obelisk doctor")
                module, inputs, names = load(question["model"])
                if "answers" in question:
                    write_answers(question["answers"], module, inputs, names)
                peer = Peer(module, inputs, question.get("precision", "keep"))
                made = []
                for name in question.get("ways", WAYS):
                    if name not in WAYS + MORE:
                        raise Refusal(f"PyTorch: no way is called {name!r}",
                                      f"--against torch={','.join(WAYS)}, or some of them")
                    with contextlib.suppress(NotImplementedError):
                        ways[name] = peer.way(name)
                        made.append(name)
                torch.cuda.synchronize()
                answer = {"version": torch.__version__, "ways": made}
            elif "round" in question:
                answer = {"latencies_us": latencies_us(ways[question["way"]], question["round"])}
            else:
                answer = {"device_us": device_us(ways[question["way"]])}
        except Exception as error:  # the other side prints it
            answer = answer_of(error)
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
