#!/usr/bin/env bash
# Makes a folder that runs on any x86-64 Linux with glibc 2.36 or newer and an NVIDIA driver.
#   scripts/pack.sh DIR      bin/ (obelisk, the tests that want a GPU, a library for Python), scripts/ (gpu.py, networks, PyTorch's and XLA's sides),
#                        kernels/ (the device code that a sanitizer's reports point into), VERSION
# Third-party code is linked in; the C library and the driver are the machine's. $OBELISK_PACK_BUILD: the build folder, build-pack.
# What building needs is set up by scripts/build.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }
[ $# -eq 1 ] || fail "usage: scripts/pack.sh DIR"
for tool in cmake ninja g++; do
  command -v $tool >/dev/null || fail "$tool is not here: scripts/build.sh installs what building needs"
done
build=${OBELISK_PACK_BUILD:-build-pack}
programs=(obelisk gpu_test gpu_blocks_test batch_test instances_test random_graphs_gpu api_test libtensors.so tenants goodput requests streams side_by_side)
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DOBELISK_STATIC=ON >/dev/null
ninja -C "$build" "${programs[@]/#/bin/}" >/dev/null || fail "the build failed: ninja -C $build ${programs[*]/#/bin/}"
rm -rf "$1/bin" "$1/scripts" "$1/kernels"
mkdir -p "$1/bin" "$1/scripts" "$1/kernels"
for program in "${programs[@]}"; do
  strip -o "$1/bin/$program" "$build/bin/$program"
done
cp scripts/gpu_zoo.py scripts/zoo*.py scripts/obelisk_backend.py "$1/scripts/"
cp scripts/gpu.py scripts/gpu_dispatch.py scripts/gpu_tenants.py scripts/gpu_goodput.py scripts/gpu_super_kernels.py scripts/gpu_merged.py scripts/gpu_kinds.py scripts/gpu_tiles.py scripts/goodput_late.py scripts/gpu_models.py scripts/gpu_sanitize.py scripts/gpu_sides.py scripts/torch_peer.py scripts/jax_peer.py bench/micro/overlap.py scripts/bench_onnxruntime.py scripts/answers_onnxruntime.py examples/tensors/tensors.py "$1/scripts/"
find src/kernels/cuda -name '*.cuh' -exec cp {} "$1/kernels/" \;  # whose lines gpu_sanitize.py's excuses name
git rev-parse --short HEAD >"$1/VERSION" 2>/dev/null || echo unknown >"$1/VERSION"
cp LICENSE "$1/"
needed=$(objdump -p "$1/bin/"* | awk '/NEEDED/ {print $2}' | sort -u | grep -Ev '^(libc|libm|libdl|libpthread|librt|ld-linux-x86-64)\.' || true)
[ -z "$needed" ] || fail "not linked in: $needed"
size=$(du -sm "$1" | cut -f1)
[ "$size" -lt 130 ] || fail "$1 has $size MB, 130 are allowed"
say "pack: $1, $size MB, glibc $(objdump -T "$1/bin/"* | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1 | cut -d_ -f2) or newer"
