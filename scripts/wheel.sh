#!/usr/bin/env bash
# Builds the Python wheel (python/README.md) and leaves it in dist/: for CPython 3.10 and later on x86-64 Linux with this machine's glibc or newer.
# Third-party code is linked in. Objects are those of build/, out of the compiler cache: the same compiler by the same name, in a folder as deep.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
need_packages
need_venv
export PATH=$ROOT/.venv/bin:$PATH
raw=build-wheel/raw
rm -rf $raw dist/obelisk-*.whl
mkdir -p $raw dist
export CC=/usr/bin/cc CXX=/usr/bin/c++
say "building the wheel"
quietly .venv/bin/python -m pip wheel --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir $raw \
  --config-settings build-dir="$ROOT/build-wheel" ./python
quietly .venv/bin/python -m auditwheel repair --wheel-dir dist $raw/obelisk-*.whl
wheel=$(echo dist/obelisk-*.whl)
size=$(du -m "$wheel" | cut -f1)
[ "$size" -lt 60 ] || fail "$wheel has $size MB, 60 are allowed"
say "wheel: $wheel, $size MB"
