"""What the device compiler makes of networks with the suite's layers (device_networks.py), beside the committed table device_code.json: of each kernel
registers, spilled bytes, shared memory and launches, of each program launches, phases and barriers. NVRTC compiles without a GPU, and its version is pinned
(scripts/requirements.txt), so the numbers are exact: a change that costs registers is seen where it is made, and not in next week's measurements.
The same networks, with fewer pixels, tokens or rows, run on 132 virtual SMs of the CPU and compared with the reference.

    python tests/cli/device_code_test.py --bless             # writes the table anew, all of it
    python tests/cli/device_code_test.py --bless minilm …    # of these networks alone

With another NVRTC registers and shared memory are not compared: registers stay below 256, spills below what is recorded, and a warning says so.
"""
import copy
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from threading import Lock, local

import device_networks
import pytest
from device_networks import PROGRAMS

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from obelisk_backend import Batch, Failure  # noqa: E402

TABLE = Path(__file__).with_name("device_code.json")
BLESS = "python tests/cli/device_code_test.py --bless"
MOST_REGISTERS, SECONDS, WORKERS = 255, 300, 2
COUNTS = ("launches", "phases", "barriers")  # of a program
COLUMNS = ("name", "ops", "launches", "registers", "spill_bytes", "smem_bytes")  # of a kernel


# ---- the numbers of a program ------------------------------------------------------------------
def numbers(report):
    """What is recorded of one `compile --json` and the `inspect --json` of its file. Of functions that kernels call the assembler reports spills alone."""
    def ordinal(one):
        return int("".join(re.findall(r"obk_\w+?_(\d+)$", one["name"])) or -1)

    def ops(one):
        return report["bodies"][ordinal(one)]["label"] if ordinal(one) >= 0 else ""

    def in_order(functions):
        return sorted(functions, key=lambda one: (ordinal(one), one["name"]))

    kernels = [[one["name"], ops(one), *(one[column] for column in COLUMNS[2:])] for one in in_order(report["kernels"])]
    functions = {}  # a program's parts are compiled one by one, and each may have the same function
    for one in in_order(report["functions"]):
        row = functions.setdefault(one["name"], [one["name"], ops(one), 0])
        row[2] = max(row[2], one["spill_bytes"])
    return {**{count: report[count] for count in COUNTS}, "kernels": kernels, "functions": [row for row in functions.values() if row[2]]}


def differences(wanted, got, exact):
    """A line for each number that differs. Not `exact`: what another compiler may change has bounds only."""
    told = [f"{count}: wanted {wanted[count]}, got {got[count]}" for count in COUNTS if wanted[count] != got[count]]
    before, now = ({row[0]: dict(zip(COLUMNS, row)) for row in each["kernels"]} for each in (wanted, got))
    told += [f"{name} ({before[name]['ops']}): wanted, but there is none" for name in before if name not in now]
    told += [f"{name} ({now[name]['ops']}): none wanted, got {now[name]}" for name in now if name not in before]
    for name in before.keys() & now.keys():
        for column in COLUMNS[1:]:
            one, other = before[name][column], now[name][column]
            if one != other if exact or column in ("ops", "launches") else column == "spill_bytes" and other > one:
                told.append(f"{name} ({before[name]['ops']}): {column} wanted {one}, got {other}")
    told += [f"{name} ({row['ops']}): {row['registers']} registers, {MOST_REGISTERS} are the most" for name, row in now.items() if row["registers"] > MOST_REGISTERS]
    before, now = ({row[0]: row for row in each["functions"]} for each in (wanted, got))
    for name in before.keys() | now.keys():
        (_, ops, one), (_, _, other) = before.get(name, [*now.get(name, [])[:2], 0]), now.get(name, [*before.get(name, [])[:2], 0])
        if one != other if exact else other > one:
            told.append(f"{name} ({ops}), called: spill_bytes wanted {one}, got {other}")
    return sorted(told)


def message(which, told):
    lines = [f"{' '.join(which)}: {line}" for line in told]
    return "\n".join([f"device code is not what {TABLE.name} says:", *lines, f"if that is meant: {BLESS}, and commit the table"])


def text_of(table):
    """A line for each kernel, so that a difference reads as one."""
    def rows(each, indent):
        return "[" + ",".join(f"\n{indent}{json.dumps(row)}" for row in each) + "]"
    programs = [f' {json.dumps(name)}: {{{", ".join(f"{json.dumps(count)}: {one[count]}" for count in COUNTS)},\n'
                f'  "kernels": {rows(one["kernels"], "   ")},\n  "functions": {rows(one["functions"], "   ")}}}'
                for name, one in table["programs"].items()]
    return (f'{{"nvrtc": {json.dumps(table["nvrtc"])}, "columns": {json.dumps(COLUMNS)}, "columns of functions": ["name", "ops", "spill_bytes"],\n"programs": {{\n' + ",\n".join(programs) + "\n}}\n")


# ---- the compiler ------------------------------------------------------------------------------
def pinned():
    return re.search(r"^nvidia-cuda-nvrtc==(\S+)$", (ROOT / "scripts" / "requirements.txt").read_text(), re.MULTILINE)[1]


def device_compiler(program):
    """(its version, or nothing where there is none; what `doctor` says). Of a wheel all three numbers, of others the two that the library tells."""
    findings = json.loads(subprocess.run([str(program), "doctor", "--json"], capture_output=True, text=True, timeout=120).stdout)["findings"]
    found = next(one for one in findings if one["name"] == "nvrtc")
    if not found["ok"]:
        return "", found["text"]
    path, version = re.fullmatch(r"(.*) \(version (.*)\)", found["text"]).groups()
    wheels = [wheel for folder in Path(path).parents for wheel in folder.glob("nvidia_cuda_nvrtc-*.dist-info")]
    return (wheels[0].name.split("-")[1].removesuffix(".dist") if wheels else version), found["text"]


class Answers:
    """Compiles networks in a few processes at once (`obelisk batch`), each network's file made and removed by the worker that has it."""

    def __init__(self, program, folder):
        self.program, self.folder, self.own, self.lock = program, folder, local(), Lock()
        self.pool, self.batches, self.networks = ThreadPoolExecutor(WORKERS), [], {}

    def ask(self, wanted):
        """Starts on `wanted`: {network: [programs, or nothing for the run on the CPU]}."""
        for network, programs in wanted.items():
            self.networks[network] = self.pool.submit(self.of_network, network, programs)

    def __call__(self, network, program):
        answer = self.networks[network].result()[program]
        assert isinstance(answer, dict), answer
        return answer

    def of_network(self, network, programs):
        with tempfile.TemporaryDirectory(dir=self.folder) as own:
            answers = {program: self.on_gpu(network, program, Path(own)) for program in programs if program}
            if None in programs:
                answers[None] = self.on_cpu(network, Path(own))
            return answers

    def on_gpu(self, network, program, folder):
        model, (_, granularity, precision, target) = folder / "full.onnx", program
        if not model.exists():
            device_networks.write(network, model)
        target, _, sms = target.partition("/")
        return self.made(model, folder, "--target", target, "--granularity", granularity, "--precision", precision, "--verify", "off", *(["--sms", sms] if sms else []))

    def on_cpu(self, network, folder):
        """Its answers are compared with the reference while it is compiled."""
        model = device_networks.write(network, folder / "small.onnx", small=True)
        return self.made(model, folder, "--target", "cpu", "--sms", "132", "--verify", "on")

    def made(self, model, folder, *flags):
        """What the compiler says of a program, and what is in the file that it wrote."""
        told = self.run("compile", model, "-o", folder / "made.obk", *flags, "--cache", self.folder / "cache")
        found = self.run("inspect", folder / "made.obk") if isinstance(told, dict) else told
        return {**told, **found} if isinstance(found, dict) else found

    def run(self, *words):
        """The answer, or in words why there is none."""
        words = [*map(str, words), "--json"]
        try:
            status, out, err = self.batch()(words, SECONDS)
        except Failure as failure:
            return f"{' '.join(words)}: {failure}"
        return json.loads(out) if status == 0 else f"{' '.join(words)}: exit {status}\n{out}{err}"

    def batch(self):
        kept = getattr(self.own, "batch", None)
        if kept is None or kept.process.poll() is not None:
            kept = self.own.batch = Batch(self.program)
            with self.lock:
                self.batches.append(kept)
        return kept

    def end(self):
        self.pool.shutdown(cancel_futures=True)
        for batch in self.batches:
            batch.end()


# ---- the tests ---------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def compiler(program):
    version, said = device_compiler(program)
    if version:
        return version
    try:
        metadata.version("nvidia-cuda-nvrtc")
    except metadata.PackageNotFoundError:
        pytest.skip(f"no device compiler: {said}")
    pytest.fail(f"nvidia-cuda-nvrtc is installed, and yet: {said}")


@pytest.fixture(scope="module")
def table():
    return json.loads(TABLE.read_text())


@pytest.fixture(scope="module")
def answers(program, request, tmp_path_factory):
    """Of all tests that were chosen, so that the processes have work while a test waits for its own."""
    made, wanted = Answers(program, tmp_path_factory.mktemp("networks")), {}
    for item in request.session.items:
        if item.path == Path(__file__) and hasattr(item, "callspec"):
            each = item.callspec.params
            wanted.setdefault(each["network"], []).append(each.get("which"))
    made.ask(wanted)
    yield made
    made.end()


def test_the_table_has_what_is_compiled_and_is_of_the_pinned_compiler(table):
    assert list(table["programs"]) == [" ".join(which) for which in PROGRAMS], f"{BLESS} writes the table anew"
    assert table["nvrtc"] == pinned(), f"scripts/requirements.txt has another NVRTC than the table: {BLESS}"
    assert text_of(table) == TABLE.read_text(), f"the table was edited by hand: {BLESS}"


def test_every_number_is_compared():
    wanted = {"launches": 3, "phases": 3, "barriers": 0, "functions": [["obk_body_1", "Add", 16]],
              "kernels": [["obk_kernel_0", "MatMul", 2, 40, 8, 1024], ["obk_kernel_1", "Add", 1, 255, 0, 0]]}

    def told(change, exact=True):
        got = copy.deepcopy(wanted)
        change(got)
        return differences(wanted, got, exact)

    def kernel(column, value):
        return lambda got: got["kernels"][0].__setitem__(COLUMNS.index(column), value)

    first = "obk_kernel_0 (MatMul)"
    for exact in (True, False):
        assert told(lambda got: None, exact) == []
        for count in COUNTS:
            assert told(lambda got: got.update({count: 7}), exact) == [f"{count}: wanted {wanted[count]}, got 7"]
        assert told(kernel("ops", "Conv"), exact) == [f"{first}: ops wanted MatMul, got Conv"]
        assert told(kernel("launches", 5), exact) == [f"{first}: launches wanted 2, got 5"]
        assert told(kernel("spill_bytes", 9), exact) == [f"{first}: spill_bytes wanted 8, got 9"]
        assert told(lambda got: got["kernels"].pop(0), exact) == [f"{first}: wanted, but there is none"]
        assert len(told(lambda got: got["kernels"].append(["obk_kernel_2", "Mul", 1, 8, 0, 0]), exact)) == 1
        assert told(lambda got: got["functions"].append(["obk_body_2", "Mul", 4]), exact) == ["obk_body_2 (Mul), called: spill_bytes wanted 0, got 4"]
    better = {f"{first}: registers wanted 40, got 39": kernel("registers", 39), f"{first}: spill_bytes wanted 8, got 0": kernel("spill_bytes", 0),
              f"{first}: smem_bytes wanted 1024, got 0": kernel("smem_bytes", 0),
              "obk_body_1 (Add), called: spill_bytes wanted 16, got 0": lambda got: got["functions"].clear()}
    for line, change in better.items():  # as another compiler may be
        assert told(change) == [line] and told(change, exact=False) == []
    assert told(kernel("registers", 256), exact=False) == [f"{first}: 256 registers, 255 are the most"]
    text = message(("minilm", "mono", "fp16", "sm_90a"), told(kernel("registers", 41)))
    assert f"minilm mono fp16 sm_90a: {first}: registers wanted 40, got 41" in text and BLESS in text


@pytest.mark.parametrize("network, which", [pytest.param(which[0], which, id="-".join(which)) for which in PROGRAMS])
def test_device_code(answers, table, compiler, network, which):
    got = numbers(answers(network, which))
    exact = compiler == table["nvrtc"]
    if not exact:
        warnings.warn(f"NVRTC is {compiler}, the table is of {table['nvrtc']}: registers and shared memory are not compared, spills have a bound only")
    assert " ".join(which) in table["programs"], f"{TABLE.name} has no {' '.join(which)}: {BLESS}"
    told = differences(table["programs"][" ".join(which)], got, exact)
    assert not told, message(which, told)


@pytest.mark.parametrize("network", device_networks.NETWORKS)
def test_132_virtual_sms_of_the_cpu_agree_with_the_reference(answers, network):
    answer = answers(network, None)
    assert answer["sms"] == 132 and answer["tasks"] > 0 and answer["verify"]["ok"], answer


# ---- the table -----------------------------------------------------------------------------------
def bless(names):
    program = Path(os.environ.get("OBELISK", ROOT / "build" / "bin" / "obelisk"))
    version, said = device_compiler(program)
    if version != pinned():
        sys.exit(f"error: the table is of NVRTC {pinned()} (scripts/requirements.txt), here is {version or said}\n"
                 "try: .venv/bin/pip install -r scripts/requirements.txt, and OBELISK_NVRTC unset")
    known = json.loads(TABLE.read_text())["programs"] if names else {}
    wanted = {name: [which for which in PROGRAMS if which[0] == name] for name in names or device_networks.NETWORKS}
    with tempfile.TemporaryDirectory() as folder:
        answers = Answers(program, Path(folder))
        try:
            answers.ask(wanted)
            programs = {" ".join(which): numbers(answers(which[0], which)) if which[0] in wanted else known[" ".join(which)] for which in PROGRAMS}
        finally:
            answers.end()
    TABLE.write_text(text_of({"nvrtc": version, "programs": programs}))
    print(f"wrote {TABLE}: {len(programs)} programs, {sum(len(one['kernels']) for one in programs.values())} kernels")


if __name__ == "__main__":
    if "--bless" not in sys.argv[1:] or set(sys.argv[1:]) - {"--bless", *device_networks.NETWORKS}:
        sys.exit(f"usage: {BLESS} [NETWORK…], of {', '.join(device_networks.NETWORKS)}")
    bless([each for each in sys.argv[1:] if each != "--bless"])
