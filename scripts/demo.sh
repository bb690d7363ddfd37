#!/usr/bin/env bash
# The main job on real input: embeds sentences with all-MiniLM-L6-v2, compiled by Obelisk.
#   scripts/demo.sh                                   a small set of sentences
#   scripts/demo.sh "query" "sentence" "sentence" …   yours; the first is compared with the others
set -euo pipefail
"$(dirname "${BASH_SOURCE[0]}")/build.sh"
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
# A GPU's code is compiled by NVRTC: its wheel, where the driver is and no other was found.
if [ -e /proc/driver/nvidia/version ] && ! build/bin/obelisk doctor | grep -q '^ok  *nvrtc'; then
  say "installing nvidia-cuda-nvrtc into .venv: the compiler of code for the GPU"
  quietly .venv/bin/pip install --disable-pip-version-check 'nvidia-cuda-nvrtc>=13,<14'
fi
PATH="$ROOT/.venv/bin:$PATH" exec python3 scripts/demo.py "$@"
