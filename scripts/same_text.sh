#!/usr/bin/env bash
# Whether the working tree writes the same code as a commit, byte for byte: bodies, device code, schedules (scripts/same_text.py says of what).
#   scripts/same_text.sh REV                       all networks; prints those that differ, exit 1 where one does
#   scripts/same_text.sh REV --only minilm bert    these alone
#   scripts/same_text.sh REV --less REGEX          but for lines that match, on both sides: of a change that is meant
#   scripts/same_text.sh REV --built PROGRAM       PROGRAM was built from REV: nothing is built but the working tree
#
# REV's texts are kept in build/same_text, so that a commit is built once, in a worktree of its own there. Both are built with the program alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf '%s\n' "$*" >&2; }
usage() { say "usage: scripts/same_text.sh REV [--built PROGRAM] [--less REGEX] [--only NAME…]"; exit 2; }

[ $# -ge 1 ] || usage
rev=$(git rev-parse --verify --quiet "$1^{commit}") || { say "error: no commit is called '$1'"; exit 2; }
shift
built= only=() less=()
while [ $# -gt 0 ]; do
  case "$1" in
    --built) [ $# -ge 2 ] || usage; built=$2; shift 2 ;;
    --less) [ $# -ge 2 ] || usage; less=(--less "$2"); shift 2 ;;
    --only) shift; [ $# -ge 1 ] || usage; only=(--only "$@"); break ;;
    *) usage ;;
  esac
done
python=python3
[ -x .venv/bin/python ] && python=.venv/bin/python
kept=build/same_text source=build/same_text/source
mkdir -p "$kept"

build_in() {  # build_in FOLDER LOG
  [ -e "$1/build/build.ninja" ] || cmake -S "$1" -B "$1/build" -G Ninja -DCMAKE_BUILD_TYPE=Release >"$2" 2>&1 || { cat "$2" >&2; return 1; }
  ninja -C "$1/build" obelisk >"$2" 2>&1 || { cat "$2" >&2; return 1; }
}

# The commit's texts: those that are kept, others by its own build.
if ! [ -e "$kept/$rev/complete" ]; then
  if [ -z "$built" ]; then
    say "building ${rev:0:12}"
    if [ -e "$source/.git" ]; then git -C "$source" checkout --quiet --detach "$rev"; else git worktree add --quiet --detach "$source" "$rev"; fi
    build_in "$source" "$kept/source.log"
    built=$source/build/bin/obelisk
  fi
  "$python" scripts/same_text.py texts "$built" "$kept/$rev" "${only[@]}"
  [ ${#only[@]} -gt 0 ] || touch "$kept/$rev/complete"
fi
build_in . "$kept/now.log"
rm -rf "$kept/now"
"$python" scripts/same_text.py texts build/bin/obelisk "$kept/now" "${only[@]}"
exec "$python" scripts/same_text.py compare "$kept/$rev" "$kept/now" "${less[@]}" "${only[@]}"
