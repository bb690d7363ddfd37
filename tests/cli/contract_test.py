"""What other tools rely on: verbs, exit codes, JSON keys, files written. Text that people read is
matched only where a message must name its culprit."""
import os
import re
import sys

import numpy as np
import onnx
import pytest
from conftest import ROOT, VERBS, random, save
from obelisk_backend import write_npz
from onnx import TensorProto, helper, numpy_helper

USAGE, BAD_MODEL, UNSUPPORTED = 1, 2, 3
ROWS = ["--shape", "rows=3"]


def relu(x, w, b):
    return np.maximum(x @ w + b, 0)


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help(obelisk, verb):
    words = [verb, "ls"] if verb == "cache" else [verb]  # cache's flags belong to its own two verbs
    text = obelisk(*words, "--help", code=0).out
    assert "--json" in text


@pytest.mark.parametrize(
    "arguments", [["frobnicate"], ["check"], ["check", "m.onnx", "--no-such-flag"]]
)
def test_usage_errors(obelisk, arguments):
    assert obelisk(*arguments, code=USAGE).err


def test_missing_file_is_named(obelisk):
    result = obelisk("check", "nowhere.onnx")
    assert result.code in (USAGE, BAD_MODEL), result
    assert "nowhere.onnx" in result.err


# ---- check -------------------------------------------------------------------------------------
def test_check_json(obelisk, mlp):
    report = obelisk("check", mlp, *ROWS, "--json", code=0).json
    assert report["ok"] is True and report["unsupported"] == []
    assert [value["name"] for value in report["inputs"]] == ["x"]
    assert [value["name"] for value in report["outputs"]] == ["y"]
    for value in report["inputs"] + report["outputs"]:
        assert {"name", "type", "shape"} <= value.keys()
    assert report["inputs"][0]["shape"] == [3, 8]
    assert report["outputs"][0]["shape"] == [3, 4]


def test_check_takes_shapes_by_input_name(obelisk, mlp):
    report = obelisk("check", mlp, "--shape", "x=5x8", "--json", code=0).json
    assert report["outputs"][0]["shape"] == [5, 4]


def test_check_lists_all_unsupported_nodes(obelisk, unsupported):
    report = obelisk("check", unsupported, "--json", code=UNSUPPORTED).json
    assert report["ok"] is False
    assert {row["node"] for row in report["unsupported"]} == {"find/NonZero", "count/Unique", "odd/Strange"}
    assert {row["op"] for row in report["unsupported"]} == {"NonZero", "Unique", "Strange"}
    for row in report["unsupported"]:
        assert {"node", "op", "domain", "types", "shapes", "reason", "hint"} <= row.keys()
        assert row["reason"] and row["hint"]


def test_check_names_unsupported_nodes_to_people(obelisk, unsupported):
    result = obelisk("check", unsupported, code=UNSUPPORTED)
    for word in ("find/NonZero", "count/Unique"):
        assert word in result.out + result.err


def test_an_unsupported_node_comes_with_its_inputs_and_the_way_out(obelisk, tmp_path):
    nodes = [
        helper.make_node(
            "NonMaxSuppression", ["boxes", "scores", "", "limit"], ["kept"], name="head/nms"
        ),
        helper.make_node("NonZero", ["boxes"], ["found"], name="head/find"),
        helper.make_node("Strange", ["boxes"], ["odd"], name="odd", domain="com.example"),
    ]
    model = save(
        tmp_path / "det.onnx",
        nodes,
        {
            "boxes": (TensorProto.FLOAT, [1, 5, 4]),
            "scores": (TensorProto.FLOAT, [1, "classes", 5]),
            "limit": (TensorProto.FLOAT, [1]),
        },
        {"kept": (TensorProto.INT64, ["k", 3]), "found": (TensorProto.INT64, [3, "n"]),
         "odd": (TensorProto.FLOAT, [4])},
    )
    result = obelisk("check", model, "--shape", "classes=2", "--json", code=UNSUPPORTED)
    report = result.json
    assert report["inputs"][1] == {"name": "scores", "type": "f32", "shape": [1, "classes", 5]}
    assert report["outputs"][0] == {"name": "kept", "type": "i64", "shape": ["k", 3]}
    first = report["unsupported"][0]
    assert first["types"] == ["f32", "f32", "", "f32"] and first["shapes"] == [
        "[1,5,4]",
        "[1,2,5]",
        "",
        "[1]",
    ]
    lines = result.err.splitlines()
    assert lines[0].startswith(
        'error[O3] unsupported: node "head/nms" (NonMaxSuppression, opset 17): '
    )
    assert lines[1] == "  inputs  boxes f32[1,5,4], scores f32[1,2,5], limit f32[1]"
    assert lines[2].startswith("  in      ") and lines[2].endswith("det.onnx")
    assert (
        lines[3].startswith("  try     ")
        and "2 more unsupported nodes" in lines[4]
        and "head/find" in lines[5]
    )


def test_what_is_unbound_is_told_once_with_all_flags(obelisk, tmp_path):
    node = helper.make_node("Where", ["c", "x", "y"], ["z"], name="n")
    dims = {"c": ["batch", "size"], "x": ["batch", "size"], "y": [None, 3]}
    model = save(
        tmp_path / "m.onnx",
        [node],
        {
            name: (TensorProto.BOOL if name == "c" else TensorProto.FLOAT, dims[name])
            for name in dims
        },
        {"z": (TensorProto.FLOAT, ["batch", "size"])},
    )
    message, _, *rest = obelisk("check", model, code=USAGE).err.splitlines()
    assert (
        message.count("'batch'") == 1
        and message.count("'size'") == 1
        and "dimension 0 of input 'y'" in message
    )
    assert rest == ["  try     --shape batch=2 --shape size=2 --shape y=2x3"]
    flags = rest[0].split()[1:]
    obelisk("check", model, *flags[:2], "--shape", "size=3", *flags[4:], code=0)


def test_unknown_operator_is_unsupported(obelisk, tmp_path):
    node = helper.make_node("Frobnicate", ["x"], ["y"], name="odd", domain="com.example")
    model = save(tmp_path / "odd.onnx", [node], {"x": (TensorProto.FLOAT, [4])},
                 {"y": (TensorProto.FLOAT, [4])})
    report = obelisk("check", model, "--json", code=UNSUPPORTED).json
    assert report["unsupported"][0]["node"] == "odd"
    assert report["unsupported"][0]["domain"] == "com.example"


# ---- compile -----------------------------------------------------------------------------------
def test_compile_json(obelisk, mlp, tmp_path):
    report = obelisk("compile", mlp, "-o", "mlp.obk", *ROWS, "--json", code=0).json
    keys = {"output", "target", "seconds", "phases", "tasks", "bodies", "weights_bytes",
            "workspace_bytes", "peak_rss_bytes", "verify"}
    assert keys <= report.keys()
    assert report["seconds"]["total"] > 0 and len(report["seconds"]) > 1
    assert 0 < report["seconds"]["write"] < report["seconds"]["total"]
    assert report["bodies_compiled"] + report["bodies_cached"] == report["bodies"]
    again = obelisk("compile", mlp, "-o", "mlp.obk", *ROWS, "--json", code=0).json
    assert again["bodies_compiled"] == 0 and again["bodies_cached"] == report["bodies"]
    uncached = obelisk("compile", mlp, "-o", "off.obk", *ROWS, "--json", "--cache", "off", code=0).json
    assert uncached["bodies_compiled"] == report["bodies"] and uncached["bodies_cached"] == 0
    assert {"ok", "max_abs", "max_rel", "tolerance"} <= report["verify"].keys()
    assert report["verify"]["ok"] is True
    assert (tmp_path / "mlp.obk").stat().st_size > 0


def test_compile_is_reproducible(obelisk, mlp, tmp_path):
    for name in ("one.obk", "two.obk"):
        obelisk("compile", mlp, "-o", name, *ROWS, code=0)
    assert (tmp_path / "one.obk").read_bytes() == (tmp_path / "two.obk").read_bytes()


def test_compile_refuses_unsupported_and_leaves_nothing(obelisk, unsupported, tmp_path):
    before = sorted(tmp_path.iterdir())
    obelisk("compile", unsupported, "-o", "m.obk", code=UNSUPPORTED)
    assert sorted(tmp_path.iterdir()) == before


def test_compile_into_missing_folder(obelisk, mlp, tmp_path):
    result = obelisk("compile", mlp, "-o", "no/such/folder/m.obk", *ROWS)
    assert result.code != 0 and "no/such/folder" in result.err
    assert not (tmp_path / "no").exists()


def test_compile_keeps_the_old_file_when_it_fails(obelisk, unsupported, tmp_path):
    (tmp_path / "m.obk").write_text("kept")
    obelisk("compile", unsupported, "-o", "m.obk", code=UNSUPPORTED)
    assert (tmp_path / "m.obk").read_text() == "kept"


def test_unbound_dimension_is_named(obelisk, mlp):
    result = obelisk("compile", mlp, "-o", "m.obk")
    assert result.code == USAGE, result
    assert "rows" in result.err and "--shape" in result.err


@pytest.mark.parametrize(
    "shape", ["rows", "rows=", "rows=-2", "rows=two", "nothing=3", "x=3x9", "x=3"]
)
def test_bad_shapes_are_usage_errors(obelisk, mlp, shape):
    assert obelisk("check", mlp, "--shape", shape, code=USAGE).err


@pytest.mark.parametrize("precision", ["keep", "fp32", "tf32", "fp16", "bf16"])
def test_precision(obelisk, mlp, precision):
    report = obelisk(
        "compile", mlp, "-o", "m.obk", *ROWS, "--precision", precision, "--json", code=0
    ).json
    wide = precision in ("keep", "fp32")
    assert report["verify"]["ok"] and (report["verify"]["tolerance"] <= 1e-4) == wide
    ran = obelisk("run", "m.obk", "--seed", "1", "--json", code=0).json
    assert {port["type"] for port in ran["outputs"]} == {"f32"}
    assert report["precision"] == precision
    assert obelisk("inspect", "m.obk", "--json", code=0).json["precision"] == precision
    # A compiled file of it is judged by what it is, also when its graph is compiled again.
    obelisk("run", "m.obk", "--portable", "--seed", "1", code=0)
    for again in ((), ("--bisect",)):
        judged = obelisk("verify", "m.obk", *again, "--json", code=0).json
        if precision == "tf32" and again != ("--bisect",):
            assert judged["tolerance"] > 1e-4 and judged["max_rel"] > 1e-6


def test_numbers_beyond_the_range_of_fp16_are_told(obelisk, tmp_path):
    """What a product reads is larger than f16 holds: the answer is infinite or none, and the error says what would not be."""
    (tmp_path / "large.ir").write_text("""graph "large" {
  in %0 "x": f32[4,64]
  const %1: f32[1] = [9000.0]
  %2: f32[4,64] = Mul(%0, %0)
  %3: f32[4,64] = Mul(%2, %0)
  %4: f32[4,64] = Mul(%3, %1)
  %5: f32[4,64] = Exp(%0)
  %6: f32[64,4] = Transpose(%5) {perm = [1, 0]}
  %7: f32[4,4] = MatMul(%4, %6)
  out %7 "y"
}
""")
    answer = obelisk("verify", "large.ir", "--precision", "fp16")
    assert answer.code == 5 and "f16 holds no number beyond 65504" in answer.err and "--precision bf16" in answer.err, answer.err
    obelisk("verify", "large.ir", "--precision", "bf16", code=0)


def test_precision_of_a_compiled_file_is_decided(obelisk, mlp):
    obelisk("compile", mlp, "-o", "m.obk", *ROWS, code=0)
    assert "precision" in obelisk("run", "m.obk", "--precision", "fp16", code=USAGE).err
    assert (
        obelisk("verify", mlp, *ROWS, "--precision", "bf16", "--json", code=0).json["tolerance"]
        > 1e-4
    )


def test_verify_off_is_reported(obelisk, mlp):
    report = obelisk("compile", mlp, "-o", "m.obk", *ROWS, "--verify", "off", "--json", code=0).json
    assert "verify" in report and not (report["verify"] or {}).get("ok")


# ---- what is known of answers --------------------------------------------------------------------
def test_run_and_bench_verify_once_and_say_so(obelisk, mlp, tmp_path):
    cache = ["--cache", tmp_path / "fresh"]
    first = obelisk("run", mlp, *ROWS, *cache, "--seed", "1", "--json", code=0).json["verified"]
    assert first["status"] == "now" and first["rows"] == "every row"
    assert 0 <= first["max_rel"] <= first["tolerance"] <= 1e-4 and first["rounding"] > 0
    again = obelisk("run", mlp, *ROWS, *cache, "--seed", "2", "--json", code=0).json["verified"]
    assert again["status"] == "before" and again["max_rel"] == first["max_rel"]
    assert "verified before: " in obelisk("run", mlp, *ROWS, *cache, "--seed", "1", code=0).out
    timed = obelisk("bench", mlp, *ROWS, *cache, "--seconds", "0.05", "--json", code=0).json
    assert timed["verified"]["status"] == "before"
    # Another program is verified for itself.
    other = obelisk("run", mlp, "--shape", "rows=4", *cache, "--json", code=0).json["verified"]
    assert other["status"] == "now"
    listed = obelisk("cache", "ls", *cache, "--json", code=0).json["entries"]
    assert sum(entry["file"].endswith(".verified") for entry in listed) == 2
    obelisk("cache", "clear", *cache, code=0)
    assert not list((tmp_path / "fresh").glob("*.verified"))


@pytest.mark.parametrize("verb", ["run", "bench"])
def test_what_is_not_verified_says_why(obelisk, mlp, verb, tmp_path):
    short = ["--seconds", "0.05"] if verb == "bench" else []
    off = ["--verify", "off"]
    assert "not verified: --verify off" in obelisk(verb, mlp, *ROWS, *short, *off, code=0).out
    report = obelisk(verb, mlp, *ROWS, *short, *off, "--json", code=0).json["verified"]
    assert report == {"status": "not", "why": "--verify off"}
    late = ["--verify-seconds", "1e-9", "--cache", tmp_path / "fresh"]
    report = obelisk(verb, mlp, *ROWS, *short, *late, "--json", code=0).json["verified"]
    assert report["status"] == "not" and "one row" in report["why"]


def test_a_compiled_file_says_whether_it_was_verified(obelisk, mlp):
    obelisk("compile", mlp, "-o", "m.obk", *ROWS, code=0)
    assert obelisk("run", "m.obk", "--json", code=0).json["verified"] == {
        "status": "compiled", "rows": "every row"
    }
    obelisk("compile", mlp, "-o", "off.obk", *ROWS, "--verify", "off", code=0)
    report = obelisk("run", "off.obk", "--json", code=0).json["verified"]
    assert report["status"] == "not" and "--verify off" in report["why"]
    assert "not verified" in obelisk("run", "off.obk", code=0).out
    again = obelisk("run", "off.obk", "--portable", "--json", code=0).json["verified"]
    assert again["status"] in ("now", "before")


def test_rows_are_sampled_where_time_is_short(obelisk, tmp_path):
    # A batch that takes the reference seconds, of which each row takes milliseconds.
    width, rows = 512, 2048
    nodes = [helper.make_node("MatMul", ["x" if k == 0 else f"h{k - 1}", f"w{k}"], [f"h{k}"])
             for k in range(4)]
    nodes.append(helper.make_node("Relu", ["h3"], ["y"]))
    weights = {f"w{k}": random(width, width) / width ** 0.5 for k in range(4)}
    model = save(tmp_path / "wide.onnx", nodes, {"x": (TensorProto.FLOAT, [rows, width])},
                 {"y": (TensorProto.FLOAT, [rows, width])}, weights)
    report = obelisk("run", model, "--verify-seconds", "0.1", "--json", code=0).json["verified"]
    assert re.fullmatch(rf"\d+ of {rows} rows of 'y'", report["rows"]), report
    obelisk("compile", model, "-o", "wide.obk", "--verify-seconds", "0.1", code=0)
    assert obelisk("run", "wide.obk", "--json", code=0).json["verified"]["rows"] == report["rows"]


# ---- run ---------------------------------------------------------------------------------------
@pytest.fixture
def numbers(tmp_path):
    x = np.random.default_rng(5).standard_normal((3, 8), dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    write_npz(tmp_path / "all.npz", {"x": x})
    return x


@pytest.mark.parametrize("given", [["--input", "x=x.npy"], ["--inputs", "all.npz"]])
def test_run_binds_dimensions_by_the_inputs(obelisk, mlp, numbers, tmp_path, given):
    report = obelisk("run", mlp, *given, "--output-dir", "answers", "--json", code=0).json
    got = np.load(tmp_path / "answers" / "y.npy")
    np.testing.assert_allclose(got, relu(numbers, random(8, 4), random(4)), rtol=1e-5, atol=1e-5)
    assert got.dtype == np.float32
    assert "[3, 4]" in re.sub(r"\s+", " ", str(report))


def test_run_a_compiled_file(obelisk, mlp, numbers, tmp_path):
    obelisk("compile", mlp, "-o", "mlp.obk", *ROWS, code=0)
    mlp.unlink()
    obelisk("run", "mlp.obk", "--input", "x=x.npy", "--output-dir", ".", code=0)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), relu(numbers, random(8, 4), random(4)),
                               rtol=1e-5, atol=1e-5)


def test_run_repeats_a_seed(obelisk, mlp, tmp_path):
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        obelisk("run", mlp, *ROWS, "--seed", seed, "--output-dir", folder, code=0)
    a, b, c = (np.load(tmp_path / folder / "y.npy") for folder in "abc")
    assert (a == b).all() and not (a == c).all()


def test_output_names_become_safe_file_names(obelisk, tmp_path):
    node = helper.make_node("Neg", ["a/b:c"], ["../out put:0"], name="n")
    model = save(tmp_path / "m.onnx", [node], {"a/b:c": (TensorProto.FLOAT, [2])},
                 {"../out put:0": (TensorProto.FLOAT, [2])})
    write_npz(tmp_path / "i.npz", {"a/b:c": np.array([1, -2], np.float32)})
    obelisk("run", model, "--inputs", "i.npz", "--output-dir", "d", code=0)
    assert np.load(tmp_path / "d" / ".._out_put_0.npy").tolist() == [-1, 2]


@pytest.mark.parametrize("array, word", [
    (np.zeros((3, 9), np.float32), "9"), (np.zeros((3, 8), np.float64), "f64"),
    (np.zeros(8, np.float32), "x"), (np.zeros((3, 8), np.int32), "i32")])
def test_run_refuses_a_wrong_input(obelisk, mlp, tmp_path, array, word):
    np.save(tmp_path / "x.npy", array)
    result = obelisk("run", mlp, "--input", "x=x.npy", code=USAGE)
    assert "x" in result.err and word in result.err


def test_run_refuses_an_unknown_input(obelisk, mlp, numbers):
    assert "nosuch" in obelisk("run", mlp, "--input", "nosuch=x.npy", code=USAGE).err


def test_run_refuses_a_broken_npy(obelisk, mlp, tmp_path):
    (tmp_path / "x.npy").write_bytes(
        b"\x93NUMPY\x01\x00\xff\xff{'descr': '<f4', 'shape': (9999999999,)}"
    )
    assert "x.npy" in obelisk("run", mlp, "--input", "x=x.npy", code=USAGE).err


# ---- bench, verify, inspect, cache, doctor -------------------------------------------------------
def test_bench_json(obelisk, mlp):
    report = obelisk(
        "bench", mlp, *ROWS, "--threads", "1", "--seconds", "0.2", "--json", code=0
    ).json
    assert {"target", "device", "runs", "latency_us", "noisy", "against"} <= report.keys()
    latency = report["latency_us"]
    assert 0 < latency["min"] <= latency["median"] <= latency["p90"] <= latency["p99"]
    assert report["runs"] > 0 and report["against"] == []


def test_bench_against_onnxruntime(obelisk, mlp):
    report = obelisk(
        "bench", mlp, *ROWS, "--against", "onnxruntime", "--seconds", "0.5", "--json", code=0
    ).json
    (other,) = report["against"]
    assert other["name"] == "onnxruntime" and other["version"]
    assert {"median", "p90", "p99", "min"} <= other["latency_us"].keys()
    ratio = other["latency_us"]["median"] / report["latency_us"]["median"]
    assert other["speedup"] == pytest.approx(ratio, rel=0.02)


@pytest.mark.parametrize(
    "against", [[], ["--against", "reference"], ["--against", "onnxruntime"], ["--bisect"]]
)
def test_verify_json(obelisk, mlp, against):
    assert obelisk("verify", mlp, *ROWS, *against, "--json", code=0).json["ok"] is True


def test_inspect_both_kinds_of_file(obelisk, mlp):
    obelisk("compile", mlp, "-o", "mlp.obk", *ROWS, code=0)
    for file in (mlp, "mlp.obk"):
        assert isinstance(obelisk("inspect", file, "--json", code=0).json, dict)
        assert obelisk("inspect", file, code=0).out


@pytest.mark.parametrize("compiled", [False, True])
def test_inspect_writes_a_model_for_viewers(obelisk, mlp, tmp_path, compiled):
    obelisk("compile", mlp, "-o", "mlp.obk", *ROWS, code=0)
    file = ["mlp.obk"] if compiled else [mlp, *ROWS]
    obelisk("inspect", *file, "--onnx", "shown.onnx", code=0)
    shown = onnx.load(tmp_path / "shown.onnx")
    onnx.checker.check_model(shown, full_check=True)
    notes = {note.key: note.value for node in shown.graph.node for note in node.metadata_props}
    assert notes["obelisk.wave"].isdigit() and notes["obelisk.group"].isdigit()
    obelisk("verify", "shown.onnx", "--against", "onnxruntime", code=0)


def test_compiled_files_stand_beside_onnxruntime(obelisk, mlp):
    obelisk("compile", mlp, "-o", "mlp.obk", *ROWS, code=0)
    mlp.unlink()
    (other,) = obelisk(
        "bench", "mlp.obk", "--against", "onnxruntime", "--seconds", "0.3", "--json", code=0
    ).json["against"]
    assert other["name"] == "onnxruntime" and other["latency_us"]["median"] > 0
    assert (
        obelisk("verify", "mlp.obk", "--against", "onnxruntime", "--json", code=0).json["ok"]
        is True
    )


def test_portable_follows_neither_code_nor_tables_of_a_hostile_file(obelisk, tmp_path):
    """Source that does not compile, machine code that traps, a workspace of 8 TiB; all checksums
    are right."""
    sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
    import seeds
    (tmp_path / "m.ir").write_text(seeds.HOSTILE)
    obelisk("compile", "m.ir", "-o", "m.obk", "--target", "cpu", code=0)
    made = seeds.hostile((tmp_path / "m.obk").read_bytes())
    kept = (ROOT / "tests" / "fuzz" / "corpus" / "obk" / "hostile_portable").read_bytes()
    x = np.array([[1, 2, 3, 4], [-1, -2, -3, -4]], np.float32)
    np.save(tmp_path / "x.npy", x)
    assert kept[:8] == made[:8], "another format: tests/fuzz/seeds.py FOLDER obk writes FOLDER/obk/hostile_portable anew"
    for file in (made, kept):
        (tmp_path / "hostile.obk").write_bytes(file)
        assert "8.0 TiB workspace" in obelisk("inspect", "hostile.obk", code=0).out
        obelisk("run", "hostile.obk", "--portable", "--input", "x=x.npy", "--output-dir", "out", code=0)
        assert np.load(tmp_path / "out" / "y.npy").tolist() == [[4, 6], [0, 0]]


def test_portable_runs_from_the_graph_inside(obelisk, mlp, numbers, tmp_path):
    obelisk("compile", mlp, "-o", "mlp.obk", *ROWS, code=0)
    for folder, flags in (("native", []), ("portable", ["--portable"])):
        obelisk("run", "mlp.obk", "--input", "x=x.npy", "--output-dir", folder, *flags, code=0)
    assert (tmp_path / "native" / "y.npy").read_bytes() == (
        tmp_path / "portable" / "y.npy"
    ).read_bytes()
    damaged = bytearray((tmp_path / "mlp.obk").read_bytes())
    damaged[len(damaged) // 2] ^= 0x40
    (tmp_path / "mlp.obk").write_bytes(damaged)
    result = obelisk("run", "mlp.obk", "--input", "x=x.npy", "--portable")
    assert result.code == 2 and "damaged" in result.err


def test_cache_lists_and_clears(obelisk, mlp):
    obelisk("compile", mlp, "-o", "mlp.obk", *ROWS, code=0)
    full = obelisk("cache", "ls", "--json", code=0)
    full.json
    obelisk("cache", "clear", code=0)
    assert len(obelisk("cache", "ls", "--json", code=0).out) < len(full.out)
    obelisk("compile", mlp, "-o", "mlp.obk", *ROWS, code=0)


def test_doctor(obelisk):
    assert obelisk("doctor", "--json", code=0).json
    assert obelisk("doctor", code=0).out


# ---- reading the compiler's work -----------------------------------------------------------------
def steps_of(obelisk, model):
    """The steps that --to takes, from the error that an unknown one gets."""
    result = obelisk("compile", model, *ROWS, "-o", "m.obk", "--to=no_such_step", code=USAGE)
    return [word for word in re.findall(r"[a-z][a-z_]+", result.err.partition("no_such_step")[2])]


def test_to_and_explain_take_any_step(obelisk, mlp, tmp_path):
    named = steps_of(obelisk, mlp)
    timed = obelisk("compile", mlp, *ROWS, "-o", "m.obk", "--json", code=0).json["seconds"]
    steps = [step for step in timed if step in named]
    assert len(steps) >= 3, f"seconds has {sorted(timed)}; --to names {named}"
    for step in steps:
        (tmp_path / "m.obk").unlink(missing_ok=True)
        assert obelisk(
            "compile", mlp, *ROWS, "-o", "m.obk", f"--to={step}", code=0
        ).out.strip(), step
        assert not (tmp_path / "m.obk").exists(), f"--to={step} stops before the file is written"
        obelisk("compile", mlp, *ROWS, "-o", "m.obk", f"--explain={step}", code=0)


def test_run_stops_at_a_step_for_the_inputs_given(obelisk, mlp, numbers, tmp_path):
    """`run --to` and `run --explain` show the steps of what would run: dimensions come from the
    inputs."""
    stopped = obelisk("run", mlp, "--input", "x=x.npy", "--to=import", "--output-dir", "d", code=0)
    assert "[3,8]" in stopped.out and not (tmp_path / "d").exists()
    ran = obelisk(
        "run",
        mlp,
        "--input",
        "x=x.npy",
        "--explain=stitch,schedule",
        "--output-dir",
        "d",
        "--json",
        code=0,
    )
    assert "== stitch" in ran.err and "== schedule" in ran.err and ran.json["outputs"]
    assert (tmp_path / "d" / "y.npy").exists()


def test_a_compiled_file_is_explained_only_when_compiled_again(obelisk, mlp):
    obelisk("compile", mlp, "-o", "mlp.obk", *ROWS, code=0)
    assert (
        "--portable" in obelisk("run", "mlp.obk", "--seed", "1", "--explain=stitch", code=USAGE).err
    )
    assert (
        "== stitch"
        in obelisk("run", "mlp.obk", "--seed", "1", "--explain=stitch", "--portable", code=0).err
    )


def test_explanations_are_in_the_json(obelisk, mlp):
    report = obelisk(
        "compile", mlp, *ROWS, "-o", "m.obk", "--explain=stitch", "--json", code=0
    ).json
    assert report["explained"]["stitch"]
    report = obelisk(
        "compile", mlp, *ROWS, "--explain=fold_constants", "--to=stitch", "--json", code=0
    ).json
    assert report["explained"]["fold_constants"] and report["text"]


def passes_of(obelisk, model):
    """The passes that --disable takes, from the error that an unknown one gets."""
    result = obelisk("compile", model, *ROWS, "-o", "m.obk", "--disable=no_such_pass", code=USAGE)
    return re.findall(r"[a-z][a-z_]+", result.err.partition("passes: ")[2])


def test_every_pass_can_be_left_out(obelisk, mlp):
    passes = passes_of(obelisk, mlp)
    folder = ROOT / "src" / "passes"
    cases = {path.stem for path in (folder / "test").glob("*.ir") if "exported_" not in path.stem}
    # Other coordinates are planned while stitching, barriers, tall tiles and a dispatch while
    # scheduling; all others have their card and their text cases.
    dispatch = {"dispatch_classes", "dispatch_demand", "dispatch_priorities", "dispatch_memory", "dispatch_early", "fewer_sms"}
    assert cases == set(passes) - {"adapt_groups", "dataflow", "tall_gemm"} - dispatch
    assert all((folder / f"{name}.h").exists() for name in cases)
    for name in passes:
        report = obelisk(
            "compile", mlp, *ROWS, "-o", "m.obk", f"--disable={name}", "--json", code=0
        ).json
        assert report["verify"]["ok"] is True, name


def test_explanations_tell_decisions_and_reasons(obelisk, mlp):
    wrong = obelisk("compile", mlp, *ROWS, "-o", "m.obk", "--to=no_such_step", code=USAGE).err
    steps = re.findall(r"[a-z][a-z_]+", wrong.partition("steps: ")[2])
    report = obelisk(
        "compile", mlp, *ROWS, "-o", "m.obk", "--explain=" + ",".join(steps), "--json", code=0
    ).json["explained"]
    assert set(steps) == set(report) and all(report.values())
    assert "dimension 'rows' is 3" in report["import"]
    assert "in place of" in report["fold_batch_norm"]
    assert "work 0 Gemm 'first/MatMul': wave 0" in report["schedule"]
    assert "left out" in obelisk(
        "compile", mlp, *ROWS, "--to=expand", "--explain=expand", "--disable=expand", code=0
    ).out


def test_explanations_tell_what_is_left_and_why(obelisk, tmp_path):
    """A norm whose epsilon comes from outside, a batch norm whose convolution is an output."""
    nodes = [
        helper.make_node(op, inputs.split(), [output], name=name)
        for op, inputs, output, name in (
            ("Conv", "x w", "c", "conv"),
            ("BatchNormalization", "c s s s s", "b", "batch"),
            ("ReduceMean", "b axes", "m", "mean"),
            ("Sub", "b m", "d", "centred"),
            ("Mul", "d d", "q", "square"),
            ("ReduceMean", "q axes", "v", "variance"),
            ("Add", "v epsilon", "e", "sum"),
            ("Sqrt", "e", "r", "root"),
            ("Div", "d r", "y", "norm"),
        )
    ]
    image = (TensorProto.FLOAT, [1, 2, 3, 4])
    save(
        tmp_path / "left.onnx",
        nodes,
        {"x": image, "epsilon": (TensorProto.FLOAT, [])},
        {"y": image, "c": image},
        {"w": random(2, 2, 1, 1), "s": np.ones(2, "float32"), "axes": np.array([-1])},
        opset=18,
    )
    told = obelisk(
        "compile", "left.onnx", "--explain=raise_layer_norm,fold_batch_norm", "--json", code=0
    ).json["explained"]
    assert "its epsilon is not one known number\n    Div 'norm'" in told["raise_layer_norm"]
    assert "another reader\n    BatchNormalization 'batch'" in told["fold_batch_norm"]


def test_a_verb_that_is_not_there_is_named(obelisk):
    wrong = obelisk("frobnicate", code=USAGE).err
    assert "no verb 'frobnicate'" in wrong and "check, run, compile" in wrong
    assert "one of ls, clear" in obelisk("cache", code=USAGE).err
    assert "no verb 'rm'" in obelisk("cache", "rm", code=USAGE).err


def test_compile_does_not_write_over_its_model(obelisk, mlp):
    before = mlp.read_bytes()
    assert "the model itself" in obelisk("compile", mlp, *ROWS, "-o", mlp.name, code=USAGE).err
    assert mlp.read_bytes() == before


def test_what_would_be_ignored_is_refused(obelisk, mlp):
    told = obelisk("compile", mlp, *ROWS, "--shape", "rows=4", "-o", "m.obk", code=USAGE).err
    assert "binds 'rows' to 4" in told
    obelisk("compile", mlp, *ROWS, "--shape", "rows=3", "-o", "m.obk", code=0)
    for flag in ("--sms=7", "--disable=expand", "--batch-invariant", "--gemm-tile=64x64"):
        assert "too late" in obelisk("run", "m.obk", "--seed", "1", flag, code=USAGE).err
        obelisk("run", "m.obk", "--seed", "1", flag, "--portable", code=0)


def test_devices_and_pipes_are_no_files_to_write(obelisk, mlp, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in obelisk("compile", mlp, *ROWS, "-o", "pipe", code=USAGE).err
    assert (tmp_path / "pipe").is_fifo()


def test_outputs_whose_files_would_be_one_are_refused(obelisk, tmp_path):
    pair = (TensorProto.FLOAT, [2])
    both = (("Relu", "a/b"), ("Neg", "a_b"))
    nodes = [helper.make_node(op, ["x"], [y], name=op) for op, y in both]
    save(tmp_path / "m.onnx", nodes, {"x": pair}, {"a/b": pair, "a_b": pair})
    obelisk("run", "m.onnx", "--seed", "1", code=0)
    told = obelisk("run", "m.onnx", "--seed", "1", "--output-dir", "d", code=USAGE).err
    assert "'a/b' and 'a_b' would both be written to a_b.npy" in told


def test_short_names_of_nodes_are_told(obelisk, tmp_path):
    pair = (TensorProto.FLOAT, [2])
    node = helper.make_node("Relu", ["no"], ["y"], name="r")
    save(tmp_path / "m.onnx", [node], {"x": pair}, {"y": pair})
    assert 'node "r": reads \'no\'' in obelisk("check", "m.onnx", code=BAD_MODEL).err


def test_ops_of_ours_are_no_ops_of_a_model(obelisk, tmp_path):
    matrix = (TensorProto.FLOAT, [2, 3])
    for op, count in (("Rsqrt", 1), ("MaskedSoftmax", 2)):
        node = helper.make_node(op, ["x"] * count, ["y"], name="n")
        save(tmp_path / "m.onnx", [node], {"x": matrix}, {"y": matrix})
        assert "no implementation" in obelisk("check", "m.onnx", code=UNSUPPORTED).err


def test_unknown_pass_cannot_be_disabled(obelisk, mlp):
    result = obelisk("compile", mlp, *ROWS, "-o", "m.obk", "--disable=no_such_pass", code=USAGE)
    assert "no_such_pass" in result.err


def test_rows_larger_than_fast_memory_are_demoted_and_right(obelisk, tmp_path):
    """What a softmax keeps of a row goes to global memory where scratchpad memory has no place for it."""
    columns = 200_000
    kind = (TensorProto.FLOAT, [3, columns])
    save(tmp_path / "rows.onnx", [helper.make_node("Softmax", ["x"], ["y"], axis=1)], {"x": kind}, {"y": kind})
    write_npz(tmp_path / "in.npz", {"x": random(3, columns)})
    explained = obelisk("run", "rows.onnx", "--inputs", "in.npz", "--output-dir", ".", "--target", "cpu",
                        "--explain=stitch", code=0)
    assert "global, its row has no place in scratchpad memory" in explained.out + explained.err
    x = random(3, columns).astype(np.float64)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), e / e.sum(axis=1, keepdims=True), rtol=1e-5)


def test_barriers_are_told_as_they_would_be_and_as_they_are(obelisk, tmp_path):
    softmaxes = "".join(f"  %{k + 4}: f32[9,40] = Softmax(%{k})\n  out %{k + 4} \"y{k}\"\n" for k in range(4))
    inputs = "".join(f"  in %{k} \"x{k}\": f32[9,40]\n" for k in range(4))
    (tmp_path / "four.ir").write_text(f'graph "four" {{\n{inputs}{softmaxes}}}')
    told = obelisk("compile", "four.ir", "-o", "m.obk", "--target", "cpu", "--explain=schedule", code=0).out
    assert "4 works in 1 waves" in told
    assert "3 barriers where works ran one by one, 0 between waves" in told


def test_gemms_take_the_tile_that_is_asked_for_where_they_can(obelisk, tmp_path):
    weights = numpy_helper.from_array(np.ones((768, 768), np.float16), "w")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [256, 768]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", values[:1], values[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "product.onnx")

    def tile(*flags, code=0):
        machine = ("--target", "sm_90a", "--granularity", "stitch", "--to", "schedule", "--explain", "schedule")
        done = obelisk("compile", "product.onnx", *machine, *flags, code=code)
        return re.findall(r"product MatMul: .*?tiles (\d+ x \d+)", done.out) if code == 0 else done.err

    chosen = tile()
    assert chosen != ["128 x 144"]
    assert tile("--gemm-tile", "128x144") == ["128 x 144"] and tile("--gemm-tile", "64x32") == ["64 x 32"]
    assert tile("--gemm-tile", "100x144") == tile("--gemm-tile", "128x16000") == chosen
    for text in ("128", "128x", "x96", "0x96", "128x-1", "128x96x2", "128 x 96,", "128x123456"):
        assert "--gemm-tile" in tile("--gemm-tile=" + text, code=USAGE), text


def test_statistics_of_rows_behind_a_reshape_are_joined_from_parts(obelisk, tmp_path):
    """A norm is folded into the product that reads it; what the product before it stores is stored once."""
    rows, width = 48, 128
    half = lambda name, *shape: numpy_helper.from_array(np.linspace(-1, 1, int(np.prod(shape))).reshape(shape).astype(np.float16), name)  # noqa: E731
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["p"]), helper.make_node("Add", ["p", "x"], ["residual"]),
        helper.make_node("Reshape", ["residual", "shape"], ["r"]), helper.make_node("LayerNormalization", ["r", "gain", "shift"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "second"], ["q"]), helper.make_node("Tanh", ["q"], ["y"]), helper.make_node("Add", ["r", "r"], ["z"]),
    ]
    weights = [half("first", width, width), half("second", width, 256), half("gain", width), half("shift", width),
               numpy_helper.from_array(np.array([1, rows, width]), "shape")]
    value = lambda name, *shape: helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape)  # noqa: E731
    graph = helper.make_graph(nodes, "norm", [value("x", rows, width)], [value("y", 1, rows, 256), value("z", 1, rows, width)], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "norm.onnx")
    words = ("compile", "norm.onnx", "--target", "sm_90a", "--granularity", "stitch")
    out = obelisk(*words, "--to", "stitch", code=0).out
    assert re.findall("statistics of its rows(.*)", out) == [", joined from parts"]
    first = out.split("group 0 product")[1].split("group 1")[0]
    assert len(re.findall(r"^    %\d+\[", first, re.MULTILINE)) == 2  # the residual and z
    obelisk(*words, "--to", "schedule", "--check-tables", code=0)


def test_a_batch_of_products_is_split_behind_its_full_rounds(obelisk, tmp_path):
    def products(count, *flags, granularity="stitch"):
        (tmp_path / "batch.ir").write_text(
            f"""graph "batch" {{
  in %0 "x": f16[{count},256,1152]
  in %1 "w": f16[{count},1152,128]
  %2: f16[{count},256,128] = MatMul(%0, %1)
  %3: f16[{count},256,128] = Relu(%2)
  out %3 "y"
}}"""
        )
        machine = ("--target", "sm_90a", "--granularity", granularity, "--to", "split_batches")
        return obelisk("compile", "batch.ir", *machine, *flags, code=0).out.count("MatMul(")

    assert products(72) == 2  # tiles of 128 x 128 for all workers, and for twelve
    assert products(66) == products(128) == products(8) == 1
    for flags in (("--batch-invariant",), ("--disable=split_batches",), ("--sms=144",)):
        assert products(72, *flags) == 1, flags
    assert products(72, granularity="mono") == 1


def test_long_rows_of_a_gpu_are_reduced_by_parts(obelisk, tmp_path):
    def reductions(shape, axis, *flags):
        out = ",".join("1" if d == axis else str(n) for d, n in enumerate(shape))
        (tmp_path / "sum.ir").write_text(
            f"""graph "sum" {{
  in %0 "x": f32[{",".join(map(str, shape))}]
  const %1: i64[1] = [{axis}]
  %2: f32[{out}] = ReduceSum(%0, %1)
  out %2 "y"
}}"""
        )
        machine = ("--target", "sm_90a", "--granularity", "stitch", "--to", "split_products")
        return obelisk("compile", "sum.ir", *machine, *flags, code=0).out.count("ReduceSum(")

    assert reductions((2, 1000000), 1) == 2
    assert reductions((32768, 64), 0) == 2
    assert reductions((64, 30000), 1) == 1  # there are workers enough
    assert reductions((2, 20000), 1) == 1  # another phase takes longer
    assert reductions((2, 1000000), 1, "--batch-invariant") == 1
    assert reductions((2, 1000000), 1, "--disable=split_reductions") == 1
