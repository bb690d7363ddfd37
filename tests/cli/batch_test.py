"""`obelisk batch`: one process, many commands, each with its own status and what it printed."""
import json
import subprocess

import numpy as np
import pytest
from obelisk_backend import Batch, Failure, Program

USAGE = 1


def answers(program, environment, *lines):
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    done = subprocess.run([program, "batch"], input=text, capture_output=True, text=True,
                          timeout=120, env=environment)
    assert done.returncode == 0 and done.stderr == "", done
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_command_has_its_own_answer(program, environment, mlp, tmp_path):
    shape = ["--shape", "rows=3"]
    first, missing, second = answers(
        program, environment,
        ["run", str(mlp), *shape, "--seed", "1", "--json", "--output-dir", str(tmp_path / "a")],
        ["check", "nowhere.onnx"],
        ["run", str(mlp), *shape, "--seed", "2", "--json", "--output-dir", str(tmp_path / "b")])
    for one in (first, second):
        assert one["status"] == 0 and one["stderr"] == "", one
        name = json.loads(one["stdout"])["outputs"][0]["name"]
    assert missing["status"] == USAGE and missing["stdout"] == ""
    assert "nowhere.onnx" in missing["stderr"]
    a, b = (np.load(tmp_path / folder / f"{name}.npy") for folder in "ab")
    assert a.shape == b.shape and not np.array_equal(a, b)


@pytest.mark.parametrize("line", ["no JSON\n", "{}\n", "[]\n", '["run", 1]\n', '["batch"]\n'])
def test_a_line_that_is_no_command_is_told_and_the_next_one_runs(program, environment, line):
    wrong, right = answers(program, environment, line, ["--version"])
    assert wrong["status"] == USAGE and f"not '{line.strip()}'" in wrong["stderr"]
    assert right["status"] == 0 and right["stdout"].strip()


def test_the_backend_starts_another_one_after_a_crash_and_after_its_time(tmp_path):
    fake = tmp_path / "fake"
    fake.write_text("#!/bin/bash\nread -r line\n"
                    "case $line in *crash*) kill -SEGV $$;; *sleep*) sleep 60;; esac\n"
                    """echo '{"status": 0, "stdout": "{\\"pid\\": '$$'}", "stderr": ""}'; read -r line\n""")
    fake.chmod(0o755)
    program = Program(fake, timeout=3, batch=True)
    first = program("run")["pid"]
    assert Batch.of(fake).process.pid == first
    Batch.of(fake).end()
    with pytest.raises(Failure, match="SIGSEGV"):
        program("crash")
    with pytest.raises(Failure, match="no answer within"):
        Program(fake, timeout=0.5, batch=True)("sleep")
    assert program("run")["pid"] != first
    Batch.of(fake).end()
