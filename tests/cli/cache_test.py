"""The object cache holds what this user put there, and nothing else of it is loaded; the host compiler
is waited for, but not for ever."""

import signal
import stat
import subprocess
import time

ROWS = ["--shape", "rows=3"]
BUILD, INTERRUPTED = 4, 130


def compiled(obelisk, model, cache):
    report = obelisk("compile", model, "-o", "m.obk", *ROWS, "--target", "cpu", "--cache", cache, "--json", code=0)
    return report.json["bodies_compiled"], report.json["bodies_cached"], report


def test_only_what_was_put_there_is_loaded(obelisk, mlp, tmp_path):
    cache = tmp_path / "cache"
    fresh, none, _ = compiled(obelisk, mlp, cache)
    assert fresh > 0 and none == 0
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert compiled(obelisk, mlp, cache)[:2] == (0, fresh)
    # Another program's machine code, whole and loadable, in an entry's place: it would run with the next start.
    ran = tmp_path / "ran"
    text = ('#include <fcntl.h>\nextern "C" { __attribute__((constructor)) static void ran(void) { open("%s", O_CREAT | O_WRONLY, 0600); }\n'
            'void obk_body(void) {} }' % ran)
    subprocess.run(["c++", "-shared", "-fPIC", "-x", "c++", "-", "-o", tmp_path / "evil.so"], input=text, text=True, check=True)
    for entry in cache.glob("*.so"):
        entry.write_bytes((tmp_path / "evil.so").read_bytes())
    assert compiled(obelisk, mlp, cache)[:2] == (fresh, 0)
    assert not ran.exists()
    for record in cache.glob("*.verified"):
        *kept, last = record.read_bytes()
        record.write_bytes(bytes([*kept, last ^ 1]))
    assert "before" not in str(obelisk("run", mlp, *ROWS, "--cache", cache, code=0).out)


def test_a_cache_that_others_can_write_to_is_not_used(obelisk, mlp, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    fresh, _, report = compiled(obelisk, mlp, cache)
    assert "can be written by others" in report.err and f"chmod 700 '{cache}'" in report.err
    assert not list(cache.iterdir())
    assert compiled(obelisk, mlp, cache)[:2] == (fresh, 0)
    cache.chmod(0o700)
    compiled(obelisk, mlp, cache)
    assert compiled(obelisk, mlp, cache)[:2] == (0, fresh)


def slow(folder, seconds):
    """A compiler that leaves a child which sleeps."""
    path = folder / "slow"
    path.write_text(f"#!/bin/sh\nsleep {seconds} &\necho $! >{folder}/child\nwait\n")
    path.chmod(0o755)
    return path


def is_gone(pid):
    try:
        return ") Z " in open(f"/proc/{pid}/stat").read()
    except OSError:
        return True


def wait_until(what):
    for _ in range(1000):
        if what():
            return True
        time.sleep(0.02)
    return False


def test_a_compiler_that_does_not_end_is_ended(obelisk, mlp, monkeypatch, tmp_path):
    monkeypatch.setitem(obelisk.environment, "OBELISK_COMPILER_SECONDS", "0.5")
    late = obelisk("compile", mlp, "-o", "m.obk", *ROWS, "--target", "cpu", "--cache", "off", "--compiler", slow(tmp_path, 1000), code=BUILD)
    assert "was ended after 0.5 s" in late.err and "OBELISK_COMPILER_SECONDS" in late.err
    assert wait_until(lambda: is_gone((tmp_path / "child").read_text().strip()))


def test_an_interrupt_ends_the_compiler_too(program, environment, mlp, tmp_path):
    process = subprocess.Popen(
        [program, "compile", mlp, "-o", "m.obk", *ROWS, "--target", "cpu", "--cache", "off", "--compiler", slow(tmp_path, 1000)],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
    child = tmp_path / "child"
    assert wait_until(lambda: child.exists() and child.read_text().strip())
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == INTERRUPTED
    assert wait_until(lambda: is_gone(child.read_text().strip()))


def test_a_failing_compiler_is_noticed_where_children_are_ignored(program, environment, mlp, tmp_path):
    path = tmp_path / "failing"
    path.write_text("#!/bin/sh\necho no good; exit 1\n")
    path.chmod(0o755)
    done = subprocess.run(
        [program, "compile", mlp, "-o", "m.obk", *ROWS, "--target", "cpu", "--cache", "off", "--compiler", path],
        env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=100,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert done.returncode == BUILD and "ended with 1" in done.stderr and "no good" in done.stderr, done.stderr
