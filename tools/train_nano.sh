#!/bin/sh
# Makes models/nano from nothing, or goes on where it was interrupted:
#
#   tools/train_nano.sh WORK [K3]
#
# Texts, then the three stages configs/nano-train.json, nano-finish.json and nano-polish.json, each
# from the weights of the one before: 7,000, 3,000 and 4,000 steps. WORK gets a directory for each;
# WORK/nano-polish is the checkpoint. K3 is the program, build/release/k3 if left out. Finishes in
# about an hour and three quarters on one core.
set -eu

die() { printf 'train_nano: %s\n' "$*" >&2; exit 1; }

[ $# -ge 1 ] && [ $# -le 2 ] || die "usage: tools/train_nano.sh WORK [K3]"
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
k3=${2:-$root/build/release/k3}
[ -x "$k3" ] || die "$k3: no such program; \`make build\` makes it, or name another behind WORK"
work=$1
mkdir -p "$work"

if [ ! -f "$root/corpus/SOURCES.md" ]; then
  "$root/tools/gather_corpus.py" "$root/corpus" --only kjv --only devils-dictionary \
    --only us-founding-documents --only jargon-file
fi
stage() { "$k3" train "$root/configs/$1.json" --out "$work/$1" --resume ${2:+--from "$work/$2"}; }
stage nano-train
stage nano-finish nano-train
stage nano-polish nano-finish
