"""torch.compile(backend="obelisk") and torch.export, by the wheel in dist/ (scripts/wheel.sh) in an environment of its own beside
.venv-zoo (scripts/zoo.sh), which has PyTorch, torchvision and transformers."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WHEELS = sorted((ROOT / "dist").glob("obelisk-*.whl"))
ZOO = sorted((ROOT / ".venv-zoo" / "lib").glob("python3*/site-packages/torch"))
pytestmark = [pytest.mark.skipif(not WHEELS, reason="there is no wheel in dist/: scripts/wheel.sh builds it"),
              pytest.mark.skipif(not ZOO, reason="there is no PyTorch in .venv-zoo: scripts/zoo.sh installs it")]


def call(*words, **options):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, **options)
    assert done.returncode == 0, f"{words}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torch")
    call(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    packages = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (packages / "zoo.pth").write_text(f"{ZOO[0].parent}\n")
    call(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", WHEELS[-1], "pytest==9.2.0")
    return python


def test_in_an_environment_with_pytorch(python, tmp_path):
    shutil.copy(HERE / "in_torch.py", tmp_path / "in_torch.py")
    # torchvision's import wants the names of operators that builds for another CUDA do not bring.
    (tmp_path / "conftest.py").write_text(f"import sys\nsys.path.append({str(ROOT / 'scripts')!r})\nimport zoo_models  # noqa: F401\n")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LANG": os.environ.get("LANG", "C.UTF-8"), "OMP_NUM_THREADS": "1"}
    said = call(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--show-capture=no", "in_torch.py", cwd=tmp_path, env=environment)
    assert " passed" in said and "failed" not in said and "skipped" not in said
