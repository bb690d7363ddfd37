#!/usr/bin/env bash
# Builds the fuzzers of tests/fuzz with clang's libFuzzer, ASan and UBSan, and lets each run.
#   scripts/fuzz.sh                    all of them, 10 minutes each, two at a time
#   scripts/fuzz.sh --seconds 60 onnx  only some, shorter
# Each begins with the kept cases and seeds that show something new (found in the first run).
# Ends with a line that says what was found, and 1 if anything was; what breaks a reader lies in
# build/fuzz/found. The figures are written to build/fuzz/results.json.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
PACKAGES+=(clang-14 libclang-rt-14-dev llvm-14)
targets=()
for word in "$@"; do
  case $word in
    onnx | ir | npy | npz | obk) targets+=("$word") ;;
  esac
done
[ ${#targets[@]} -gt 0 ] || targets=(onnx ir npy npz obk)
need_packages
need_venv
case " ${targets[*]} " in
  *" obk "*) build_targets obelisk ;; # its seeds are compiled files
esac
say "building the fuzzers: ${targets[*]}"
quietly cmake --preset fuzz
quietly ninja -C build/fuzz "${targets[@]/%/_fuzz}"
.venv/bin/python tests/fuzz/seeds.py build/fuzz/seeds "${targets[@]}"
exec .venv/bin/python scripts/fuzz.py "$@"
