#!/bin/sh
# Runs every fuzzer of a build for a while: tools/run_fuzzers.sh BUILD_DIR SECONDS
#
# New inputs gather in BUILD_DIR/corpus/NAME, so a later run goes on where this one stopped. Seeds
# come from tests/fuzz/NAME when there are any. A crash stops the run and leaves its input in
# BUILD_DIR/crashes: add it to tests/fuzz/NAME together with the fix.
set -eu

usage="usage: tools/run_fuzzers.sh BUILD_DIR SECONDS"
bad_input() { printf 'run_fuzzers: %s\n' "$*" >&2; exit 2; }

for word in "$@"; do
  case $word in
    -h | --help) echo "$usage"; exit 0 ;;
    -*) bad_input "$word: there are no options but --help" ;;
  esac
done
[ $# -eq 2 ] || bad_input "$usage"
case $2 in
  *[!0-9]* | '' | 0*) bad_input "SECONDS: expected a whole number above 0, found '$2'" ;;
esac
build=$1
seconds=$2
source=$(cd "$(dirname "$0")/.." && pwd)

fuzzers=$(find "$build/src" -type f -name '*_fuzz' -perm -u+x 2>/dev/null | sort)
[ -n "$fuzzers" ] || bad_input "no fuzzer in $build/src; build preset fuzz"

mkdir -p "$build/crashes"
count=0
for fuzzer in $fuzzers; do
  name=$(basename "$fuzzer")
  corpus=$build/corpus/$name
  mkdir -p "$corpus"
  set -- "$corpus"
  [ ! -d "$source/tests/fuzz/$name" ] || set -- "$@" "$source/tests/fuzz/$name"
  echo "run_fuzzers: $name for $seconds s"
  log=$build/crashes/$name.log
  if ! "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="$build/crashes/$name-" "$@" >"$log" 2>&1; then
    tail -n 60 "$log"
    echo "run_fuzzers: $name failed; its input is in $build/crashes, the whole log is $log" >&2
    exit 1
  fi
  grep -E 'number_of_executed_units|^#.*DONE' "$log" || true
  count=$((count + 1))
done
echo "run_fuzzers: $count fuzzers, no crash"
