#!/usr/bin/env bash
# Sets up a fresh Debian 12 and builds the program, which it leaves at build/bin/obelisk, and the C library beside it, build/lib/libobelisk.so.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
need_packages
need_venv
build_targets obelisk obelisk_shared
echo "build: build/bin/obelisk is ready"
