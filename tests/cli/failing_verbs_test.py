"""What bench, cache and doctor say when something around them is missing or broken: the way out is
named, the exit code is right, and nothing of the user's is touched."""

import stat

import pytest

USAGE, UNSUPPORTED, BUILD = 1, 3, 4
ROWS = ["--shape", "rows=3"]


@pytest.fixture
def script(tmp_path):
    """An executable of these lines."""
    def make(name, *lines):
        path = tmp_path / name
        path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path
    return make


# ---- bench ---------------------------------------------------------------------------------------
def bench(obelisk, monkeypatch, model, python=None, code=USAGE):
    if python:
        monkeypatch.setitem(obelisk.environment, "OBELISK_PYTHON", str(python))
    return obelisk("bench", model, *ROWS, "--against", "onnxruntime", "--seconds", "0.1", code=code)


def test_bench_without_a_python(obelisk, monkeypatch, mlp, tmp_path):
    result = bench(obelisk, monkeypatch, mlp, tmp_path / "no-python")
    assert "no-python" in result.err and "cannot be started" in result.err


def test_bench_with_a_python_that_lacks_onnxruntime(obelisk, monkeypatch, mlp, script):
    python = script(
        "python",
        'echo \'{"error": "python lacks a package: onnxruntime", "hint": "scripts/build.sh"}\'',
        "cat >/dev/null",
    )
    result = bench(obelisk, monkeypatch, mlp, python)
    assert "lacks a package" in result.err and "scripts/build.sh" in result.err


@pytest.mark.parametrize("lines, word", [
    (["exit 3"], "has ended"),
    (["echo gibberish", "cat >/dev/null"], "gibberish"),
    (["read line", 'echo \'{"version": "0"}\'', "exit 0"], "has ended")])
def test_bench_when_the_helper_breaks(obelisk, monkeypatch, mlp, script, lines, word):
    assert word in bench(obelisk, monkeypatch, mlp, script("python", *lines)).err


def test_bench_of_what_cannot_run(obelisk, unsupported):
    result = obelisk("bench", unsupported, "--seconds", "0.1", code=UNSUPPORTED)
    assert "find/NonZero" in result.err


@pytest.mark.parametrize(
    "flags, word",
    [
        (["--against", "tensorrt"], "tensorrt"),
        (["--seconds", "0"], "seconds"),
        (["--threads", "-1"], "threads"),
        (["--compiler", "no-such-compiler", "--cache", "off"], "no-such-compiler"),
    ],
)
def test_bench_flags(obelisk, mlp, flags, word):
    assert word in obelisk("bench", mlp, *ROWS, *flags, code=USAGE).err


def test_bench_of_a_compiled_file_takes_no_shapes(obelisk, mlp):
    obelisk("compile", mlp, "-o", "mlp.obk", *ROWS, code=0)
    assert "shape" in obelisk("bench", "mlp.obk", "--shape", "rows=4", code=USAGE).err


# ---- cache ---------------------------------------------------------------------------------------
def test_cache_that_is_off(obelisk):
    assert obelisk("cache", "ls", "--cache", "off", "--json", code=0).json["entries"] == []
    assert "off" in obelisk("cache", "ls", "--cache", "off", code=0).out


def test_cache_that_is_a_file(obelisk, tmp_path):
    (tmp_path / "file").write_text("mine")
    for verb in ("ls", "clear"):
        assert "file" in obelisk("cache", verb, "--cache", tmp_path / "file", code=USAGE).err
    assert (tmp_path / "file").read_text() == "mine"


def test_cache_that_is_not_there_is_empty(obelisk, tmp_path):
    assert (
        obelisk("cache", "clear", "--cache", tmp_path / "none", "--json", code=0).json["removed"]
        == 0
    )
    assert not (tmp_path / "none").exists()


def test_clear_leaves_what_is_not_ours(obelisk, mlp, tmp_path):
    cache = tmp_path / "kept"
    obelisk("compile", mlp, "-o", "m.obk", *ROWS, "--cache", cache, code=0)
    (cache / "notes.txt").write_text("mine")
    (cache / "library.so").write_text("mine, too")
    assert obelisk("cache", "clear", "--cache", cache, "--json", code=0).json["removed"] > 0
    assert sorted(path.name for path in cache.iterdir()) == ["library.so", "notes.txt"]


@pytest.mark.parametrize("damage", [b"", b"no object at all", b"\x7fELF" + bytes(60)])
def test_a_broken_entry_is_made_again(obelisk, mlp, tmp_path, damage):
    cache = tmp_path / "broken"
    obelisk("compile", mlp, "-o", "one.obk", *ROWS, "--cache", cache, code=0)
    entries = [entry for entry in cache.iterdir() if entry.name != "key"]
    for entry in entries:
        entry.write_bytes(damage)
    obelisk("compile", mlp, "-o", "two.obk", *ROWS, "--cache", cache, code=0)
    assert (tmp_path / "one.obk").read_bytes() == (tmp_path / "two.obk").read_bytes()
    for entry in entries:
        whole = entry.stat().st_size > 1000
        assert whole or (entry.suffix == ".verified" and b"every row" in entry.read_bytes())


def test_a_cache_that_cannot_be_written_is_said_and_left_out(obelisk, mlp, tmp_path):
    (tmp_path / "file").write_text("")
    result = obelisk(
        "compile", mlp, "-o", "m.obk", *ROWS, "--cache", tmp_path / "file" / "cache", code=0
    )
    assert "cannot be made" in result.err


# ---- doctor --------------------------------------------------------------------------------------
def findings(result):
    return {finding["name"]: finding for finding in result.json["findings"]}


def test_without_a_compiler_the_interpreter_runs_and_says_so(obelisk, mlp, monkeypatch):
    monkeypatch.setitem(obelisk.environment, "PATH", "/nowhere")
    report = obelisk("run", mlp, *ROWS, "--seed", "1", "--output-dir", "d", "--json", code=0)
    assert report.json["target"] == "reference"
    assert "no C++ compiler" in report.err and "interpreter" in report.err
    compiled = obelisk("compile", mlp, *ROWS, "-o", "m.obk", "--cache", "off")
    assert compiled.code != 0 and "install g++" in compiled.err


def test_doctor_without_a_compiler(obelisk):
    result = obelisk("doctor", "--compiler", "no-such-compiler", "--json", code=BUILD)
    found = findings(result)["compiler"]
    assert result.json["ok"] is False and found["ok"] is False and found["essential"] is True
    assert "no-such-compiler" in found["text"] and "apt-get install" in found["mend"]
    assert (
        "problem  compiler" in obelisk("doctor", "--compiler", "no-such-compiler", code=BUILD).out
    )


def test_doctor_with_a_compiler_that_says_nothing(obelisk, script):
    found = findings(
        obelisk("doctor", "--compiler", script("cxx", "exit 1"), "--json", code=BUILD)
    )["compiler"]
    assert "does not start" in found["text"]


def test_doctor_with_a_compiler_that_cannot_compile(obelisk, script):
    compiler = script(
        "cxx",
        '[ "$1" = --version ] && echo "cxx 1.0" && exit 0',
        "echo 'no headers here' >&2",
        "exit 1",
    )
    result = obelisk("doctor", "--compiler", compiler, "--json", code=BUILD)
    found = findings(result)
    assert found["compiler"]["ok"] is True and found["program"]["ok"] is False


def test_doctor_with_a_cache_that_cannot_be_made(obelisk, tmp_path):
    (tmp_path / "file").write_text("")
    found = findings(obelisk("doctor", "--cache", tmp_path / "file" / "cache", "--json", code=0))[
        "cache"
    ]
    assert found["ok"] is False and "mkdir" in found["mend"]
    found = findings(obelisk("doctor", "--cache", "off", "--json", code=0))["cache"]
    assert found["ok"] is False and "OBELISK_CACHE" in found["mend"]


def test_doctor_without_onnxruntime_is_content(obelisk, monkeypatch, script):
    monkeypatch.setitem(obelisk.environment, "OBELISK_PYTHON", str(script("python", "exit 1")))
    result = obelisk("doctor", "--json", code=0)
    found = findings(result)["onnxruntime"]
    assert (
        result.json["ok"] is True
        and found["ok"] is False
        and found["essential"] is False
        and found["mend"]
    )
