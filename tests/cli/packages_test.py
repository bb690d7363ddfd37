"""The C library as others take it: its symbols, `cmake --install` with find_package and pkg-config, add_subdirectory, the .deb.
Each is used from a folder that knows nothing of the checkout, by examples/c."""

import os
import re
import shutil
import subprocess

import pytest
from conftest import ROOT

BUILD = ROOT / "build"
LIBRARY = BUILD / "lib" / "libobelisk.so"
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the library is not built")


def call(*words, cwd=None, code=0, **variables):
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, timeout=500,
                          env={**os.environ, **{name: str(value) for name, value in variables.items()}})
    assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def answers(program, mlp, folder, **variables):
    """The example, used: what is compiled, and what is opened again, answer alike; errors end it with their code."""
    folder = folder / "work"
    folder.mkdir()
    variables = {"OBELISK_CACHE": folder / "cache", **variables}
    model = shutil.copy(mlp, folder / "mlp.onnx")
    first = call(program, model, "rows=3", cwd=folder, **variables)
    assert first.startswith("in  x [3, 8]\nout y [3, 4]\n") and len(first.splitlines()) == 14
    assert call(program, f"{model}.obk", cwd=folder, **variables) == first
    call(program, folder / "gone.onnx", cwd=folder, code=1, **variables)


def test_the_library_exports_the_header_and_nothing_else():
    header = re.sub(r"/\*.*?\*/", "", (ROOT / "include" / "obelisk.h").read_text(), flags=re.DOTALL)
    promised = set(re.findall(r"OBELISK_API[^;(]*?(obelisk_\w+)\(", header))
    lines = call("nm", "-D", "--defined-only", LIBRARY).splitlines()
    exported = {line.split()[-1].split("@")[0] for line in lines if line.split()[-2] != "A"}
    assert len(promised) > 30 and exported == promised | {"CreateEpFactories", "ReleaseEpFactory"}  # of a plug-in of ONNX Runtime
    wanted = call("objdump", "-p", LIBRARY)
    assert re.search(r"SONAME\s+libobelisk\.so\.0\n", wanted)


def test_the_header_is_c_and_cxx(tmp_path):
    for language, standard in (("c", "c99"), ("c++", "c++11")):
        source = tmp_path / "main"
        source.write_text("#include <obelisk.h>\nint main(void) { obelisk_open_options o = OBELISK_INIT(obelisk_open_options); return o.size == 0; }\n")
        call("cc", "-x", language, f"-std={standard}", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror", "-pedantic", "-fsyntax-only",
             f"-I{ROOT}/include", source)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """What `cmake --install` leaves, moved elsewhere afterwards: nothing in it may know where it was."""
    first = tmp_path_factory.mktemp("first") / "prefix"
    call("cmake", "--install", BUILD, "--prefix", first)
    return first.rename(tmp_path_factory.mktemp("moved") / "prefix")


CONSUMER = """cmake_minimum_required(VERSION 3.25)
project(consumer C)
{}
add_executable(consumer main.c)
target_link_libraries(consumer PRIVATE obelisk::obelisk)
"""


def consumer(folder, text):
    folder.mkdir()
    shutil.copy(ROOT / "examples" / "c" / "main.c", folder)
    (folder / "CMakeLists.txt").write_text(CONSUMER.format(text))
    return folder


def test_find_package(prefix, mlp, tmp_path):
    source = consumer(tmp_path / "source", "find_package(obelisk 0.1 REQUIRED)")
    call("cmake", "-S", source, "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    call("ninja", "-C", tmp_path / "build")
    answers(tmp_path / "build" / "consumer", mlp, tmp_path)
    assert call(prefix / "bin" / "obelisk", "--version").strip() == "0.1.0"


def test_pkg_config(prefix, mlp, tmp_path):
    (found,) = prefix.rglob("obelisk.pc")
    flags = call("pkg-config", "--cflags", "--libs", "obelisk", PKG_CONFIG_PATH=found.parent).split()
    assert call("pkg-config", "--modversion", "obelisk", PKG_CONFIG_PATH=found.parent).strip() == "0.1.0"
    call("cc", ROOT / "examples" / "c" / "main.c", *flags, "-o", tmp_path / "consumer")
    answers(tmp_path / "consumer", mlp, tmp_path, LD_LIBRARY_PATH=found.parent.parent)


@pytest.mark.skipif(not shutil.which("ccache"), reason="without a compiler cache everything is compiled again")
def test_add_subdirectory(mlp, tmp_path):
    source = consumer(tmp_path / "source", f"add_subdirectory({ROOT} obelisk)")
    # In a folder as deep as the build's, so that the compiler cache has all objects.
    build = ROOT / "build-subdirectory"
    shutil.rmtree(build, ignore_errors=True)
    try:
        call("cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release")
        targets = call("ninja", "-C", build, "-t", "targets", "all")
        assert "gtest" not in targets and "tools/obelisk" not in targets  # of ours only what a user of the library needs
        call("ninja", "-C", build, "consumer")
        answers(build / "consumer", mlp, tmp_path)
    finally:
        shutil.rmtree(build)


def test_deb(mlp, tmp_path):
    call("cpack", "-G", "DEB", "--config", BUILD / "CPackConfig.cmake", "-B", tmp_path)
    (package,) = tmp_path.glob("*.deb")
    about = call("dpkg-deb", "--info", package)
    assert "Package: obelisk" in about and re.search(r"Depends:.*libc6.*libsodium23", about) and "Recommends: g++" in about
    root = tmp_path / "root"
    call("dpkg-deb", "-x", package, root)
    (library,) = root.rglob("libobelisk.so")
    assert call(root / "usr" / "bin" / "obelisk", "--version").strip() == "0.1.0"
    call("cc", ROOT / "examples" / "c" / "main.c", f"-I{root}/usr/include", f"-L{library.parent}", "-lobelisk", "-o", tmp_path / "consumer")
    answers(tmp_path / "consumer", mlp, tmp_path, LD_LIBRARY_PATH=library.parent)
