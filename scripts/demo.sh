#!/usr/bin/env bash
# The main job on real input: embeds sentences with all-MiniLM-L6-v2, compiled by Obelisk.
#   scripts/demo.sh                                   a small set of sentences
#   scripts/demo.sh "query" "sentence" "sentence" …   yours; the first is compared with the others
set -euo pipefail
"$(dirname "${BASH_SOURCE[0]}")/build.sh"
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
PATH="$ROOT/.venv/bin:$PATH" exec python3 scripts/demo.py "$@"
