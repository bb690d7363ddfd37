#!/usr/bin/env bash
# The main job on real input: embeds sentences with all-MiniLM-L6-v2, compiled by Obelisk.
#   scripts/demo.sh                                   a small set of sentences
#   scripts/demo.sh "query" "sentence" "sentence" …   yours; the first is compared with the others
set -euo pipefail
"$(dirname "${BASH_SOURCE[0]}")/build.sh"
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
# A GPU's code is compiled by NVRTC: where the driver is and none whose code it loads, the wheel that `doctor` names.
if [ -e /proc/driver/nvidia/version ]; then
  wheel=$(build/bin/obelisk doctor | sed -n "/^problem *nvrtc/{n;s/.*\(nvidia-cuda-nvrtc[^', ]*\).*/\1/p}") || true
  if [ -n "$wheel" ]; then
    say "installing $wheel into .venv: the compiler of code for the GPU"
    quietly .venv/bin/pip install --disable-pip-version-check "$wheel"
  fi
fi
PATH="$ROOT/.venv/bin:$PATH" exec python3 scripts/demo.py "$@"
