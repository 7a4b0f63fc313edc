#!/bin/sh
# Runs every fuzzer of a build for a while: tools/run_fuzzers.sh BUILD_DIR SECONDS
#
# New inputs gather in BUILD_DIR/corpus/NAME, so a later run goes on where this one stopped. Seeds
# come from tests/fuzz/NAME when there are any. A crash stops the run and leaves its input in
# BUILD_DIR/crashes: add it to tests/fuzz/NAME together with the fix.
set -eu

[ $# -eq 2 ] || { echo "usage: tools/run_fuzzers.sh BUILD_DIR SECONDS" >&2; exit 2; }
build=$1
seconds=$2
source=$(cd "$(dirname "$0")/.." && pwd)

fuzzers=$(find "$build/src" -type f -name '*_fuzz' -perm -u+x | sort)
[ -n "$fuzzers" ] || { echo "run_fuzzers: no fuzzer in $build/src; build preset fuzz" >&2; exit 1; }

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
