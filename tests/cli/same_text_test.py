"""scripts/same_text.py, which compares what two builds write, and the texts that it asks for."""
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "same_text.py"
GRAPH = "channel_shuffle"


def run(*words):
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, words), "--only", GRAPH], capture_output=True, text=True, timeout=120)


def test_a_build_writes_what_it_wrote_and_a_difference_is_told(program, tmp_path):
    before, now = tmp_path / "before", tmp_path / "now"
    for folder in (before, now):
        made = run("texts", program, folder)
        assert made.returncode == 0, made.stderr
    names = sorted(path.name for path in now.iterdir())
    assert names == sorted(f"{GRAPH}.{how}.txt" for how in ("op-sm_90a", "stitch-sm_90a", "mono-sm_90a", "cpu"))
    text = (now / f"{GRAPH}.mono-sm_90a.txt").read_text()
    assert "OBK_BODY(obk_body)" in text and "==== program.cu\n#include" in text and "==== program.schedule.txt\n" in text
    same = run("compare", before, now)
    assert same.returncode == 0 and "4 programs of 1 networks, none differs" in same.stdout, same.stdout

    (now / f"{GRAPH}.mono-sm_90a.txt").write_text(text.replace("obk_dispatch", "obk_dispatcher"))
    other = run("compare", before, now)
    assert other.returncode == 1 and f"{GRAPH}: mono-sm_90a" in other.stdout and "1 differ" in other.stdout, other.stdout


def test_hashes_of_bodies_are_not_compared(program, tmp_path):
    before, now = tmp_path / "before", tmp_path / "now"
    for folder in (before, now):
        assert run("texts", program, folder).returncode == 0
    path = now / f"{GRAPH}.cpu.txt"
    text = path.read_text()
    assert text.startswith("// ---- body ")
    path.write_text("// ---- body of another hash" + text[text.index("\n"):])
    assert run("compare", before, now).returncode == 0


def test_an_unknown_network_is_named(program, tmp_path):
    refused = subprocess.run([sys.executable, str(SCRIPT), "texts", str(program), str(tmp_path), "--only", "nothing"], capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0 and "nothing" in refused.stderr
