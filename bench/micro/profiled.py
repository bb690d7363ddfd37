"""What `obelisk profile` says of one kernel of a network, and rows of such as JSON."""
import concurrent.futures
import datetime
import json
import re
import subprocess


def kernel(obelisk, path, name, precision, granularity):
    """The tile, the number of tasks, and microseconds of the kernel of the node `name`."""
    words = ["--target", "cuda", "--precision", precision, "--granularity", granularity]
    said = subprocess.run([obelisk, "compile", path, *words, "--verify", "off", "--to", "schedule", "--explain", "schedule"],
                          capture_output=True, text=True, check=True)
    told = subprocess.run([obelisk, "profile", path, *words, "--json"], capture_output=True, text=True, check=True)
    line = next(line for line in (said.stdout + said.stderr).splitlines() if line.startswith("work ") and f"'{name}'" in line)
    wave = int(re.search(r": wave (\d+)", line)[1])
    tile = [int(number) for number in re.search(r"tiles of (\d+) x (\d+)", line).groups()]
    phase = json.loads(told.stdout)["phases"][wave]
    return {"tile": tile, "tasks": phase["tasks"],
            **{key: round(phase[key], 3) for key in ("floor_us", "predicted_us", "measured_us", "task_us")}}


def record(command, items, measure, out):
    """Measures each item, writes the rows to `out` with the GPU's name and driver, and prints them."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:  # compiled once, side by side; then timed one after the other
        list(pool.map(measure, items))
    rows = [measure(item) for item in items]
    smi = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    device, _, driver = smi.stdout.splitlines()[0].partition(", ")
    out.write_text(json.dumps({"device": device, "driver": driver, "date": str(datetime.date.today()), "command": command, "rows": rows},
                              indent=1) + "\n")
    for row in rows:
        print(json.dumps(row))
