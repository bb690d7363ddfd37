"""What every committed measurement says beside its numbers: device, date, commit, command, versions."""
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def cpu_model():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def commit():
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    result = subprocess.run(command, capture_output=True, text=True)
    return result.stdout.strip() or "unknown"


def write(name, body, path=None):
    """Writes bench/results/NAME-DATE.json (or `path`) and returns where."""
    now = datetime.datetime.now(datetime.timezone.utc)
    path = path or ROOT / "bench" / "results" / f"{name}-{now.date()}.json"
    versions = {"python": platform.python_version(), **body.pop("versions", {})}
    record = {
        "device": {"cpu": cpu_model(), "cores": os.cpu_count(), "kernel": platform.release()},
        "date": now.isoformat(timespec="seconds"),
        "commit": commit(),
        "command": shlex.join([f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "versions": versions,
        **body,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path
