"""The demo's part on a machine with a GPU: the network as one kernel, its phases, and its latency
beside PyTorch, where a Python with it is found.

    gpu = find(program)      the line of `doctor` about the GPU, or None: the demo runs on the CPU
"""

import os
import shutil
import subprocess
import sys

import minilm_torch

# One kernel of the network; 16-bit inputs of products with float sums, as PyTorch runs it beside.
FLAGS = ("--target", "cuda", "--granularity", "mono", "--precision", "fp16")
TOLERANCE = 5e-3  # on unit vectors
WAYS = "eager,graph,compile"
HAS_TORCH = "import sys, torch; sys.exit(not torch.cuda.is_available())"


def find(program, say=print):
    """Whether a GPU and the compiler of its code are here; what is missing is said."""
    found = {each["name"]: each for each in program("doctor").get("findings", [])}
    gpu, nvrtc = (found.get(name, {"ok": False}) for name in ("gpu", "nvrtc"))
    if not gpu["ok"]:
        return None
    if not nvrtc["ok"]:
        say(f"gpu        {gpu['text']}\n           its compiler is missing, so the CPU runs the demo; "
            f"{nvrtc.get('mend', '')}")
        return None
    return gpu["text"]


def find_torch():
    """A Python whose PyTorch finds the GPU: told, this one, or one of the PATH."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    pythons = [os.environ.get("OBELISK_PYTHON"), sys.executable]
    pythons += [shutil.which("python3", path=folder) for folder in folders]
    for python in dict.fromkeys(p for p in pythons if p):
        try:
            done = subprocess.run([python, "-c", HAS_TORCH], capture_output=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return python
    return None


def print_phases(profile):
    """A line for each phase: what it computes, what it took, the least it could take."""
    phases = profile["phases"]
    print(f"\nphases     {len(phases)} in one kernel on {profile['device']}: "
          f"{profile['device_us']:.1f} us of device time, {profile['stream_us']:.1f} us are "
          f"streaming, {profile['exposed_us_per_phase']:.2f} us a phase are exposed")
    print("           phase       us    floor  tasks   the last to end")
    for phase in phases:
        print(f"           {phase['phase']:5} {phase['measured_us']:8.2f} {phase['floor_us']:8.2f} "
              f"{phase['tasks']:6}   {phase['waited_for']['node'][:60]}")


def print_latency(bench):
    """Ours, then PyTorch's ways; returns the sentence that ends the demo."""
    print(f"\nlatency    on {bench['device']}, all in alternating rounds"
          + (" (noisy machine)" if bench["noisy"] else ""))
    print(" " * 33 + f"{'device':>11}{'median':>14}{'p99':>14}")
    ours = {"name": "obelisk", "version": "one kernel", **bench}
    for side in (ours, *bench["against"]):
        device, latency = side["device_us"]["median"], side["latency_us"]
        print(f"  {side['name'] + ' ' + side['version']:30} {device:9.1f} us"
              f"{latency['median']:11.1f} us{latency['p99']:11.1f} us")
    if not bench["against"]:
        return f"{bench['device_us']['median']:.1f} us on the GPU (no PyTorch is here to compare)"
    best = min(bench["against"], key=lambda side: side["device_us"]["median"])
    return (f"{bench['device_us']['median']:.1f} us on the GPU, {best['speedup']:.2f}x the speed of "
            f"PyTorch ({best['name']})")


def show(program, model, shape, seconds, feeds):
    """Profile and bench of the model as one kernel, printed; the sentence for the end."""
    print_phases(program("profile", model, *shape, *FLAGS))
    against = []
    if python := find_torch():
        minilm_torch.write(model.parent, feeds)
        os.environ["OBELISK_PYTHON"] = python
        against = ["--against", f"torch={WAYS}"]
    return print_latency(program("bench", model, *shape, *FLAGS, *against, "--seconds", seconds))
