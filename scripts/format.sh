#!/usr/bin/env bash
# Formats every C++ and CUDA file that git knows, as .clang-format says.
#   scripts/format.sh           rewrites files
#   scripts/format.sh --check   says which files would change, and fails if any would
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
need_packages
need_venv
how=(-i)
case "${1-}" in
  '') ;;
  --check) how=(--dry-run -Werror --ferror-limit=1) ;;
  *) fail "usage: scripts/format.sh [--check]" ;;
esac
git ls-files -z '*.h' '*.cpp' '*.cuh' '*.cu' '*.c' | xargs -0 .venv/bin/clang-format "${how[@]}"
