#!/usr/bin/env bash
# The pipeline's tests under sanitizers, generated bodies included, with random delays between tasks.
#   scripts/sanitize.sh           ThreadSanitizer, then AddressSanitizer with UndefinedBehaviorSanitizer
#   scripts/sanitize.sh thread    one of them: thread, address
# Each builds into a folder of its own (CMakePresets.json), runs the tests of the rooms, 30 random
# graphs, and MiniLM with its trained weights against the reference; the last line says how it went.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
case "${1-all}" in
  all) builds=(thread address) ;;
  thread | address) builds=("$1") ;;
  *) fail "usage: scripts/sanitize.sh [thread|address]" ;;
esac
need_packages
need_venv
export PATH=$ROOT/.venv/bin:$PATH
# A report ends the program.
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:history_size=7:suppressions=$ROOT/scripts/thread.supp ASAN_OPTIONS=detect_leaks=1
export UBSAN_OPTIONS=print_stacktrace=1
bad=()

step() { # step NAME COMMAND…: runs it, shows its end only when it failed
  local name=$1 start=$SECONDS
  shift
  if quietly "$@"; then
    say "── $name: ok, $((SECONDS - start)) s"
  else
    say "── $name: failed, $((SECONDS - start)) s"
    bad+=("$name")
  fi
}

declare -A tests=(
  [thread]="kernels runtime serve door api"                       # those that have threads
  [address]="base kernels ops graph passes schedule runtime api fuzz"
)
# Files have one reader, and arithmetic in 16 bits has the same threads as in 32: minutes that show
# no race. What a process has of memory is not that of the program here.
declare -A without=([thread]="RandomGraphs*:Obk.*:Precision.*:Scheduler.*:*TakeNoMemoryOfTheProcess*" [address]="RandomGraphs*")
for build in "${builds[@]}"; do
  read -ra names <<<"${tests[$build]}"
  say "building with -fsanitize=$build"
  quietly cmake --preset "$build"
  quietly ninja -C "build/$build" obelisk "${names[@]/%/_test}"
  bin=build/$build/bin
  export OBELISK_CACHE=$ROOT/build/$build/cache
  for name in "${names[@]}"; do
    step "$build: $name" "$bin/${name}_test" --gtest_filter="-${without[$build]}"
  done
  if [ "$build" = thread ]; then
    step "$build: the server" env OBELISK_PATIENCE=5 OBELISK="$ROOT/$bin/obelisk" python3 -m pytest -q -p no:cacheprovider tests/serve --ignore tests/serve/judges -k "not thousand and not memory_stays and not full_disk"
  fi
  step "$build: random graphs" env OBELISK_JITTER=1 OBELISK_GRAPHS=30 \
    "$bin/runtime_test" --gtest_filter='RandomGraphs*'
  python3 scripts/minilm.py "build/$build/minilm.onnx" >/dev/null
  step "$build: MiniLM" env OBELISK_JITTER=2 "$bin/obelisk" verify "build/$build/minilm.onnx" \
    --target cpu --threads 3 --sms 7 --shape batch=2 --shape sequence=24
done
[ ${#bad[@]} -eq 0 ] || fail "sanitize: ${bad[*]}"
echo "sanitize: ${builds[*]}: no report"
