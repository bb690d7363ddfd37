#!/usr/bin/env python3
"""A decoder's step with static key-value caches that it updates in place, `torch.compile(backend="obelisk")` beside eager
PyTorch and inductor: microseconds a call, in turns.

    bench/torch_cache.py [--device cuda] [--layers 16] [--width 2048] [--heads 32] [--keys 1024] [--dtype float16] [--output FILE.json]

Each way has a module with the same weights and caches of its own; answers and caches are compared after every way took the same
steps. A call is timed from Python until its answer is there, and on a GPU also as calls in a row that wait once. Inductor is
timed as it is, and with `mode="reduce-overhead"` (CUDA graphs).
"""
import argparse
import json
import statistics
import time
from datetime import date

import obelisk.torch  # noqa: F401: the backend
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width, heads, keys, dtype):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.norm, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        for name in ("past_keys", "past_values"):
            self.register_buffer(name, torch.zeros(1, heads, keys, self.size, dtype=dtype))

    def forward(self, x, position, mask):
        q, k, v = self.project(self.norm(x)).view(1, 1, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        self.past_keys.index_copy_(2, position, k)
        self.past_values.index_copy_(2, position, v)
        y = nn.functional.scaled_dot_product_attention(q, self.past_keys, self.past_values, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(1, 1, -1))
        return x + self.down(nn.functional.gelu(self.up(self.behind(x))))


class Step(nn.Module):
    def __init__(self, options):
        super().__init__()
        dtype = getattr(torch, options.dtype)
        self.layers = nn.ModuleList(Layer(options.width, options.heads, options.keys, dtype) for _ in range(options.layers))
        self.register_buffer("places", torch.arange(options.keys))

    def forward(self, x, position):
        mask = (self.places <= position).view(1, 1, 1, -1)
        for layer in self.layers:
            x = layer(x, position, mask)
        return x


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float16", choices=("float16", "bfloat16", "float32"))
    for name, value in (("layers", 16), ("width", 2048), ("heads", 32), ("keys", 1024), ("rounds", 5), ("calls", 40)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--output", help="a JSON file")
    options = parser.parse_args()
    torch.manual_seed(0)
    dtype, cuda = getattr(torch, options.dtype), options.device.startswith("cuda")
    first = Step(options).to(options.device, dtype).eval()
    for module in first.modules():  # scales that let the input through
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features ** -0.5)
    ways = {"eager": lambda m: m, "inductor": torch.compile}
    if cuda:
        ways["inductor, CUDA graphs"] = lambda m: torch.compile(m, mode="reduce-overhead")
    ways["obelisk"] = lambda m: torch.compile(m, backend="obelisk")
    modules, steps = {}, {}
    for name, compiled in ways.items():
        torch._dynamo.reset()
        modules[name] = Step(options).to(options.device, dtype).eval()
        modules[name].load_state_dict(first.state_dict())
        steps[name] = compiled(modules[name])
    xs = [torch.randn(1, 1, options.width, device=options.device, dtype=dtype) for _ in range(8)]
    places = [torch.tensor([k], device=options.device) for k in range(8)]
    wait = torch.cuda.synchronize if cuda else (lambda: None)
    answers, report = {}, {name: {"call_us": [], "in_a_row_us": []} for name in ways}
    with torch.no_grad():
        for name, step in steps.items():
            begun = time.perf_counter()
            answers[name] = [step(x, place).clone() for x, place in zip(xs, places)]
            wait()
            report[name]["first_s"] = round(time.perf_counter() - begun, 1)
        scale = max(answer.abs().max().item() for answer in answers["eager"])
        for name in ways:
            report[name]["error"] = max((mine - theirs).abs().max().item() for mine, theirs in zip(answers[name], answers["eager"])) / scale
            report[name]["cache_error"] = max((mine.past_keys - theirs.past_keys).abs().max().item()
                                              for mine, theirs in zip(modules[name].layers, modules["eager"].layers))
        for _ in range(options.rounds):
            for name, step in steps.items():
                for k in range(options.calls):
                    wait()
                    begun = time.perf_counter()
                    step(xs[k % 8], places[k % 8])
                    wait()
                    report[name]["call_us"].append(1e6 * (time.perf_counter() - begun))
                begun = time.perf_counter()
                for k in range(options.calls):
                    step(xs[k % 8], places[k % 8])
                wait()
                report[name]["in_a_row_us"].append(1e6 * (time.perf_counter() - begun) / options.calls)
    for name, row in report.items():
        for key in ("call_us", "in_a_row_us"):
            row[key] = round(statistics.median(row[key]), 1)
        print(name, row)
    body = {"device": torch.cuda.get_device_name() if cuda else "CPU", "date": str(date.today()), "torch": torch.__version__,
            "obelisk": obelisk.__version__, "shape": {key: getattr(options, key) for key in ("layers", "width", "heads", "keys", "dtype")},
            "ways": report}
    if options.output:
        with open(options.output, "w") as file:
            file.write(json.dumps(body, indent=1) + "\n")
    wrong = [name for name, row in report.items() if not row["error"] < (0.02 if options.dtype != "float32" else 1e-4)]
    if wrong:
        raise SystemExit(f"wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
