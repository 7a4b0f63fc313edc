#!/bin/sh
# Makes models/nano from nothing, or goes on where it was interrupted:
#
#   tools/train_nano.sh WORK [K3]
#
# Texts, then the three stages configs/nano-train.json, nano-finish.json and nano-polish.json, each
# from the weights of the one before: 7,000, 3,000 and 4,000 steps. WORK gets a directory for each;
# WORK/nano-polish is the checkpoint. K3 is the program, build/release/k3 if left out. Finishes in
# about an hour and three quarters on one core. Ends with 2 for bad input.
set -eu

usage() {
  cat <<'END'
usage: tools/train_nano.sh WORK [K3]

Makes models/nano from nothing, or goes on where it was interrupted.
  WORK  the directory of the runs, made if needed; WORK/nano-polish is the checkpoint
  K3    the program; build/release/k3
END
}

die() { printf 'train_nano: %s\n' "$*" >&2; exit 2; }

for word in "$@"; do
  case $word in
    -h | --help) usage; exit 0 ;;
    -*) die "$word: there are no options but --help; a directory of that name is ./$word" ;;
  esac
done
[ $# -eq 1 ] || [ $# -eq 2 ] || {
  usage >&2
  die "expected WORK and perhaps K3, found $# words"
}

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
work=$1
k3=${2-$root/build/release/k3}
[ -n "$k3" ] || die "K3: expected the k3 program, found an empty name"
case $k3 in */*) ;; *) k3=./$k3 ;; esac  # never one of that name in PATH
[ -e "$k3" ] || die "$k3: there is no such program; \`make build\` makes it, or name it behind WORK"
[ -f "$k3" ] || die "$k3: expected the k3 program, found a directory or a special file; name another"
[ -x "$k3" ] || die "$k3: expected the k3 program, found a file that is not executable; name another"
[ -n "$work" ] || die "WORK: expected a directory, found an empty name"
[ ! -e "$work" ] || [ -d "$work" ] || die "$work: expected a directory, found a file; name another WORK"
message=$(mkdir -p -- "$work" 2>&1) || die "$work: cannot be made (${message##*: }); name another WORK"
[ -w "$work" ] && [ -x "$work" ] || die "$work: cannot be written; change its mode or name another WORK"

# SOURCES.md is there after any source was gathered: only the texts themselves tell.
complete=yes
set --
for text in kjv devils-dictionary us-founding-documents jargon-file; do
  [ -f "$root/corpus/$text.txt" ] || complete=no
  set -- "$@" --only "$text"
done
[ "$complete" = yes ] || "$root/tools/gather_corpus.py" "$root/corpus" "$@"

stage() { "$k3" train "$root/configs/$1.json" --out "$work/$1" --resume ${2:+--from "$work/$2"}; }
stage nano-train
stage nano-finish nano-train
stage nano-polish nano-finish
