#!/usr/bin/env bash
# The backend tests of onnx against build/bin/obelisk; flags and meaning: scripts/conformance.py --help.
set -euo pipefail
"$(dirname "${BASH_SOURCE[0]}")/build.sh"
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec .venv/bin/python scripts/conformance.py "$@"
