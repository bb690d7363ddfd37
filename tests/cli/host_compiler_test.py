"""The host compiler of a Python package: ziglang of the environment that was asked for, and of no other."""
import stat

import pytest

ROWS = ("--shape", "rows=3")


@pytest.fixture
def with_zig(tmp_path):
    """A Python environment whose ziglang is g++ that notes what it was told."""
    folder = tmp_path / "env"
    package = folder / "lib" / "python3.11" / "site-packages" / "ziglang"
    package.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").write_text("")
    zig = package / "zig"
    zig.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >>{tmp_path}/told\n[ "$1" = c++ ] || exit 9\nshift 3\nPATH=/usr/bin exec /usr/bin/g++ "$@"\n')
    zig.chmod(zig.stat().st_mode | stat.S_IXUSR)
    return folder


def test_it_is_found_where_no_other_is(obelisk, mlp, with_zig, tmp_path, monkeypatch):
    for name, value in (("PATH", "/nowhere"), ("OBELISK_PYTHON", str(with_zig / "bin" / "python3"))):
        monkeypatch.setitem(obelisk.environment, name, value)
    report = obelisk("run", mlp, *ROWS, "--seed", "1", "--output-dir", "d", "--json", code=0)
    assert report.json["target"] == "cpu"
    told = (tmp_path / "told").read_text().splitlines()
    assert told and all(line.startswith("c++ -nostdlib++ -fno-sanitize=undefined -std=c++17 ") for line in told)
    doctor = {each["name"]: each for each in obelisk("doctor", "--json").json["findings"]}
    assert doctor["compiler"]["ok"] and "/ziglang/zig: " in doctor["compiler"]["text"]


def test_one_on_the_path_comes_first(obelisk, mlp, with_zig, tmp_path, monkeypatch):
    monkeypatch.setitem(obelisk.environment, "OBELISK_PYTHON", str(with_zig / "bin" / "python3"))
    obelisk("run", mlp, *ROWS, "--seed", "1", "--output-dir", "d", "--cache", "off", code=0)
    assert not (tmp_path / "told").exists()
    obelisk("run", mlp, *ROWS, "--seed", "1", "--output-dir", "d", "--cache", "off", "--compiler",
            with_zig / "lib" / "python3.11" / "site-packages" / "ziglang" / "zig", code=0)
    assert (tmp_path / "told").exists()


def test_other_environments_are_not_asked(obelisk, mlp, with_zig, tmp_path, monkeypatch):
    empty = tmp_path / "other" / "bin" / "python3"
    empty.parent.mkdir(parents=True)
    empty.write_text("")
    packages = with_zig / "lib" / "python3.11" / "site-packages"
    for name, value in (("PATH", "/nowhere"), ("OBELISK_PYTHON", str(empty)), ("VIRTUAL_ENV", str(with_zig)), ("PYTHONPATH", str(packages))):
        monkeypatch.setitem(obelisk.environment, name, value)
    report = obelisk("run", mlp, *ROWS, "--seed", "1", "--output-dir", "d", "--json", code=0)
    assert report.json["target"] == "reference" and not (tmp_path / "told").exists()
