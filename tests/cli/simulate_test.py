"""`obelisk simulate`: the scheduler under a virtual clock, on times that were measured on an H200."""
import json
import subprocess
from random import Random

import pytest
from conftest import ROOT

TIMES = ROOT / "bench" / "results" / "h200_tenants.json"
MODELS = "resnet50,second:resnet50,resnet18,googlenet,minilm,bert-base,crnn,deepfm"
MIX = ("--times", TIMES, "--models", MODELS)


@pytest.fixture
def simulate(program, environment):
    def call(*words, status=0):
        done = subprocess.run([program, "simulate", *map(str, words)], env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout) if "--json" in words else done.stdout + done.stderr
    return call


@pytest.mark.parametrize("workload", [["poisson"], ["burst"], ["burst", "--sigma", "2"]], ids=" ".join)
def test_vliw_is_ahead_of_all_others(simulate, workload):
    """Eight models, deadlines of 2, 3, 5, 10 times their time alone: the rate with 99 % in time."""
    found = simulate("--generate", *workload, *MIX, "--policy", "all", "--goodput", "0.99", "--requests", "20000", "--json")
    rates = {one["policy"]: one["rate_per_s"] for one in found["policies"]}
    assert set(rates) == {"fifo", "time", "streams", "edf", "batch", "vliw"}
    best = max(rate for policy, rate in rates.items() if policy != "vliw")
    assert best > 0 and rates["vliw"] >= 1.5 * best, rates


def test_batches_of_one_model_fill_the_machine_under_overload(simulate, tmp_path):
    """A batch of 32 takes about three times as long as a request: beyond what can be answered, launches stay full."""
    batches = {width: {str(batch): base + step * batch for batch in (2, 4, 8, 16, 32)} for width, base, step in (("1", 20000, 1450), ("2", 10300, 790))}
    alone = {"1": 21450, "2": 11090}
    times, trace = tmp_path / "times.json", tmp_path / "trace.jsonl"
    times.write_text(json.dumps({"device": "a processor of two cores", "slots": 2, "models": {"layers": {"alone": alone, "beside": alone, "batches": batches}}}))
    capacity = 32 / (batches["2"]["32"] * 1e-6)
    random, at, lines = Random(5), 0.0, []
    while at < 10:
        at += random.expovariate(1.2 * capacity)
        lines.append(json.dumps({"time_us": round(at * 1e6), "model": "layers", "deadline_us": 110000}))
    trace.write_text("\n".join(lines))
    found = simulate(trace, "--times", times, "--policy", "vliw", "--noise", "0.1", "--json")["policies"][0]
    assert found["all"]["in_time"] > 0.85 * capacity * 10, found["all"]
    assert found["all"]["share_of_taken"] > 0.99, found["all"]


def test_two_models_in_batches_share_many_slots(simulate, tmp_path):
    """Batches that spread well are not cut into lanes of a slot each, in which they would be too late to be full."""
    batches = {width: {str(batch): round(1000 * (base + step * batch)) for batch in (2, 4, 8, 16, 32)}
               for width, base, step in (("1", 32, 3.7), ("2", 16.2, 1.88), ("5", 6.7, 0.79), ("10", 3.6, 0.42))}
    alone = {"1": 35700, "2": 18080, "5": 7490, "10": 4020}
    model = {"alone": alone, "beside": alone, "batches": batches}
    times, trace = tmp_path / "times.json", tmp_path / "trace.jsonl"
    times.write_text(json.dumps({"device": "a processor of ten cores", "slots": 10, "models": {"a": model, "b": model}}))
    capacity = 32 / (batches["10"]["32"] * 1e-6)
    random, at, lines = Random(3), 0.0, []
    while at < 6:
        at += random.expovariate(1.2 * capacity)
        lines.append(json.dumps({"time_us": round(at * 1e6), "model": random.choice("ab"), "deadline_us": 80000}))
    trace.write_text("\n".join(lines))
    found = simulate(trace, "--times", times, "--policy", "vliw", "--noise", "0.1", "--json")["policies"][0]
    assert found["all"]["in_time"] > 0.6 * capacity * 6, found["all"]


def test_overload_is_refused_early_and_nobody_starves(simulate):
    """Far beyond what can be in time, of what is taken nearly all is, and each model has its part."""
    found = simulate("--generate", "poisson", *MIX, "--rate", "12000", "--requests", "30000", "--json")["policies"][0]
    assert found["all"]["share_of_taken"] > 0.95
    assert all(tenant["share"] > 0.5 for tenant in found["tenants"]), found["tenants"]
    assert found["all"]["asked"] == found["all"]["answered"] + found["all"]["refused"] + found["all"]["given_up"] == 30000


def test_a_trace_is_written_and_gives_the_same_again(simulate, tmp_path):
    trace = tmp_path / "trace.jsonl"
    simulate("--generate", "azure", *MIX, "--requests", "3000", "-o", trace)
    first = json.loads(trace.read_text().splitlines()[0])
    assert set(first) == {"time_us", "model", "deadline_us"}
    once = simulate(trace, *MIX, "--policy", "vliw,batch", "--json")
    again = simulate("--generate", "azure", *MIX, "--requests", "3000", "--policy", "vliw,batch", "--json")
    for a, b in zip(once["policies"], again["policies"], strict=True):
        del a["seconds"], b["seconds"]
        assert a == b
    more = simulate(trace, *MIX, "--gpus", "4", "--json")["policies"][0]
    assert more["all"]["share"] > once["policies"][0]["all"]["share"]


def test_tenants_priorities_and_missing_deadlines(simulate, tmp_path):
    trace = tmp_path / "trace.jsonl"
    lines = [{"time_us": k * 10, "model": "resnet18", "tenant": "ab"[k % 2], "priority": k % 2} for k in range(100)]
    trace.write_text("\n".join(json.dumps(line) for line in lines))
    found = simulate(trace, *MIX, "--json")["policies"][0]
    tenants = {one["name"]: one for one in found["tenants"]}
    assert tenants["a"]["answered"] == tenants["b"]["answered"] == 50
    assert tenants["a"]["p50_us"] < tenants["b"]["p50_us"]


@pytest.mark.parametrize("line, said", [
    ("{", "line 1: not an object of JSON"), ('{"time_us": 1}', "model"), ('{"time_us": 1, "model": "x"}', "there are no times of 'x'"),
    ('{"time_us": 2, "model": "deepfm"}\n{"time_us": 1, "model": "deepfm"}', "line 2: earlier than the line before"),
    ('{"time_us": 1, "model": "deepfm", "rows": 0}', "rows below 1"), ('{"time_us": "soon", "model": "deepfm"}', "line 1:"),
])
def test_traces_that_are_wrong_are_refused_with_the_line(simulate, tmp_path, line, said):
    trace = tmp_path / "trace.jsonl"
    trace.write_text(line)
    assert said in simulate(trace, *MIX, status=1)


def test_flags_that_are_wrong_are_refused(simulate, tmp_path):
    assert "either a trace or --generate" in simulate(*MIX, status=1)
    assert "no policy 'best'" in simulate("--generate", "poisson", *MIX, "--policy", "best", status=1)
    assert "no part 'luck'" in simulate("--generate", "poisson", *MIX, "--without", "luck", status=1)
    assert "no times of 'vgg'" in simulate("--generate", "poisson", "--times", TIMES, "--models", "vgg", status=1)
    assert "--times is needed" in simulate("--generate", "poisson", status=1)
    (tmp_path / "times.json").write_text('{"slots": 4, "models": {"m": {"alone": {"2": 5}}}}')
    assert "times.json" in simulate("--generate", "poisson", "--times", tmp_path / "times.json", status=1)
    (tmp_path / "record").write_text("machine 1 1\nfinish 1 5\n")
    assert "line 2 of the record: no run" in simulate("--replay", tmp_path / "record", status=1)


def test_long_runs_that_give_way_keep_short_deadlines(simulate, tmp_path):
    """A model of 10 ms that has the whole machine most of the time, and one of 200 us whose deadline is a tenth of that."""
    times, trace = tmp_path / "times.json", tmp_path / "trace.jsonl"
    models = {"long": {"alone": {"8": 10000}, "segment": 100}, "urgent": {"alone": {"8": 200}, "beside": {"1": 700}}}
    times.write_text(json.dumps({"slots": 8, "models": models}))
    lines = [{"time_us": 11000 * k, "model": "long"} for k in range(300)] + [{"time_us": 5171 * k, "model": "urgent", "deadline_us": 1000} for k in range(600)]
    trace.write_text("\n".join(json.dumps(line) for line in sorted(lines, key=lambda line: line["time_us"])))

    def run(*more):
        found = simulate(trace, "--times", times, "--policy", "vliw:overlap=0", *more, "--json")["policies"][0]
        return {one["name"]: one for one in found["tenants"]}, found["within"]
    cut, within = run()
    whole, none = run("--without", "segments")
    assert within > 300 and none == 0
    assert cut["urgent"]["share"] > 0.95 and whole["urgent"]["share"] < 0.5, (cut, whole)
    assert cut["long"]["answered"] == whole["long"]["answered"] == 300
