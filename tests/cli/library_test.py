"""The program under examples/ that carries the library: it compiles, keeps the file, and answers
from several threads; what goes wrong leaves as one line and the exit code of its kind."""

import os
import subprocess

import pytest
from conftest import ROOT

EMBED = ROOT / "build" / "bin" / "embed"


def embed(*words, cwd):
    done = subprocess.run(
        [str(EMBED), *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OBELISK_CACHE": str(cwd / "cache")},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(not EMBED.exists(), reason="built with the tests only")
def test_embedding_program(mlp, tmp_path):
    code, first, errors = embed(mlp, "rows=3", cwd=tmp_path)
    assert code == 0, errors
    assert (tmp_path / "mlp.onnx.obk").exists()
    code, again, errors = embed(mlp, cwd=tmp_path)  # now from the compiled file
    assert code == 0, errors
    assert sorted(first.splitlines()) == sorted(again.splitlines())
    assert len(first.splitlines()) == 3


@pytest.mark.skipif(not EMBED.exists(), reason="built with the tests only")
def test_embedding_program_says_what_is_wrong(mlp, tmp_path):
    code, _, errors = embed(mlp, cwd=tmp_path)
    assert code == 1 and "rows" in errors
    code, _, errors = embed("nowhere.onnx", cwd=tmp_path)
    assert code in (1, 2) and "nowhere.onnx" in errors
