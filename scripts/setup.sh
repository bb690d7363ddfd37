# shellcheck shell=bash
# Sourced by the other scripts: what a fresh Debian 12 needs, installed once.
#
#   need_packages   Debian packages: compiler, build tools, libraries   (root or sudo)
#   need_venv       .venv in the checkout from scripts/requirements.txt
#   build_targets [TARGET…]   configures and builds ./build
#
# Each says what it installs and is silent and quick when there is nothing to do.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
# Debian's own tools, whatever else a machine carries: these are the versions that we build with.
export PATH=/usr/bin:/bin:/usr/sbin:/sbin:$PATH

PACKAGES=(
  g++ cmake ninja-build pkg-config ccache dpkg-dev python3 python3-venv
  libfmt-dev libcli11-dev libprotozero-dev nlohmann-json3-dev libxxhash-dev zlib1g-dev
  libxsmm-dev libsodium-dev libgtest-dev libgmock-dev libdlpack-dev python3-dev
  libboost1.81-dev libgrpc++-dev libsimdjson-dev libtomlplusplus-dev libssl-dev openssl libsqlite3-dev
)

say() { printf '%s\n' "$*" >&2; }

fail() { say "error: $*"; exit 1; }

quietly() {  # runs a command; shows what it printed only when it fails
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 || status=$?
  if [ "$status" -ne 0 ]; then
    cat "$log" >&2
    say "error: '$*' ended with $status"
  fi
  rm -f "$log"
  return "$status"
}

need_packages() {
  local missing=() package sudo=()
  for package in "${PACKAGES[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "these packages are missing and neither root nor sudo is here: ${missing[*]}"
    sudo=(sudo)
  fi
  say "installing from Debian: ${missing[*]}"
  quietly "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  quietly "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

need_venv_at() {  # need_venv_at FOLDER REQUIREMENTS
  local folder=$1 requirements=$2 stamp
  stamp="$(sha256sum <"$requirements") $(python3 --version) $ROOT"
  [ "$(cat "$folder/.stamp" 2>/dev/null)" = "$stamp" ] && return 0
  say "installing into $folder: $(grep -v '^#' "$requirements" | tr '\n' ' ')"
  rm -rf "$folder"
  quietly python3 -m venv "$folder"
  quietly "$folder/bin/pip" install --disable-pip-version-check --no-deps -r "$requirements"
  printf '%s\n' "$stamp" >"$folder/.stamp"
}

need_venv() { need_venv_at .venv scripts/requirements.txt; }

build_targets() {
  say "building: ${*:-all}"
  quietly cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release
  # The programs look for Python packages beside themselves.
  [ -d .venv ] && ln -sfn ../.venv build/.venv
  if [ -t 1 ]; then
    ninja -C build "$@"
  else
    quietly ninja -C build "$@"
  fi
}
