#!/usr/bin/env bash
# Sets up a fresh Debian 12, builds everything and runs all tests.
#   scripts/test.sh          rooms, formatting, C++ tests, command line tests, device code beside its table, conformance,
#                            a dozen of the wide zoo (PyTorch, in an environment of its own), programs that judge the server
#   scripts/test.sh --all    and the exported networks, judges that install for long, half an hour of serving, all sizes of device code
# Every stage runs, whatever the one before it said; the last line counts all of them.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
all=
case "${1-}" in
  '') ;;
  --all) all=yes ;;
  *) fail "usage: scripts/test.sh [--all]" ;;
esac
reports=$ROOT/build/test
PACKAGES+=(chromium) # tests/cli/report_test.py looks at the page of `report`
need_packages
need_venv
need_venv_at build/oldest scripts/requirements-oldest.txt
build_targets all
export PATH=$ROOT/.venv/bin:$PATH
export OBELISK_PYTHON=$ROOT/.venv/bin/python  # whose packages have the device compiler
rm -rf "$reports" && mkdir -p "$reports"

stage() {  # stage NAME COMMAND…: notes the exit, so that tally.py sees a stage that died early
  local name=$1 status=0 start=$SECONDS
  shift
  say "── $name"
  "$@" || status=$?
  echo "$status" >"$reports/$name.status"
  say "── $name: $([ "$status" -eq 0 ] && echo ok || echo "failed ($status)"), $((SECONDS - start)) s"
}

[ -e scripts/check_rooms.py ] && stage rooms python3 scripts/check_rooms.py
stage format scripts/format.sh --check
stage wheel scripts/wheel.sh
[ -z "$all" ] || export OBELISK_TEST_ALL=1  # tests that download or compile much
# Whole outputs, for tally.py counts the cases of each program.
stage ctest ctest --test-dir build -j 2 --output-on-failure --test-output-size-passed 4000000 --test-output-size-failed 4000000 \
  --output-junit "$reports/ctest.xml"
stage pytest python3 -m pytest -q -n 2 --dist loadfile -p no:cacheprovider tests/cli tests/python --ignore tests/cli/device_code_test.py \
  --ignore tests/python/torch_backend_test.py --junitxml "$reports/pytest.xml"
# Alone: servers with deadlines.
stage serve python3 -m pytest -q -p no:cacheprovider tests/serve --ignore tests/serve/judges --junitxml "$reports/serve.xml"
stage judges scripts/judges.sh ${all:+--all} --junitxml "$reports/judges.xml"
stage device_code python3 -m pytest -q -p no:cacheprovider tests/cli/device_code_test.py --junitxml "$reports/device_code.xml"
stage conformance python3 scripts/conformance.py --junit "$reports/conformance.xml"
# Twelve networks of the wide zoo, others with each commit; none is begun after four minutes.
stage zoo_wide scripts/zoo.sh wide --within 240 \
  --dozen "$(git rev-list --count HEAD 2>/dev/null || date +%j | sed 's/^0*//')"
# The backend of torch.compile, in a copy of the environment that the stage before has made.
stage torch python3 -m pytest -q -p no:cacheprovider tests/python/torch_backend_test.py --junitxml "$reports/torch.xml"
if [ -n "$all" ]; then
  stage patterns scripts/zoo.sh patterns
  stage zoo scripts/zoo.sh
  stage soak python3 scripts/soak.py
  stage fuzz_serve python3 tests/serve/fuzzing.py --minutes 10
fi
exec python3 scripts/tally.py "$reports"
