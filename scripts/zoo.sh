#!/usr/bin/env bash
# Writes the exported networks into build/zoo (those not there yet) and compares obelisk with ONNX
# Runtime on each.   scripts/zoo.sh [NETWORK…]   `scripts/zoo.sh patterns [PATTERN…]` exports small
# modules instead and compares what they are raised to. `scripts/zoo.sh wide [--help | NAME…]` goes
# through the networks of torchvision, timm and transformers and writes docs/networks.md.
# Needs PyTorch, in an environment of its own.
set -euo pipefail
"$(dirname "${BASH_SOURCE[0]}")/build.sh"
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
need_venv_at .venv-zoo scripts/requirements-zoo.txt
if ! .venv-zoo/bin/python -c 'import torch' 2>/dev/null; then
  say "installing into .venv-zoo: the libraries that this build of PyTorch names"
  quietly .venv-zoo/bin/pip install --disable-pip-version-check \
    "$(grep '^torch==' scripts/requirements-zoo.txt)"
fi
if [ "${1-}" = patterns ]; then
  exec .venv-zoo/bin/python scripts/zoo_patterns.py --junit build/test/patterns.xml "${@:2}"
fi
if [ "${1-}" = wide ]; then
  exec .venv-zoo/bin/python scripts/zoo_wide.py --junit build/test/zoo_wide.xml "${@:2}"
fi
.venv-zoo/bin/python scripts/zoo.py --keep "${@}"
PATH="$ROOT/.venv/bin:$PATH" exec python3 scripts/zoo_check.py --junit build/test/zoo.xml "$@"
