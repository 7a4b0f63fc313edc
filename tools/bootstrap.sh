#!/bin/sh
# Installs the Debian packages that the given lists name, one a line, as far as they are missing.
#
#   tools/bootstrap.sh tools/packages-build.txt tools/packages-test.txt
#
# Needs root, or sudo, only when something is missing. A package that a list's "# Programs:" line
# names too is there when its program is, whoever brought it. On a system without apt it names the
# packages and fails only if a program of a list's "# Programs:" line is missing too.
set -eu

say() { printf 'bootstrap: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

bad_input() { say "$@"; exit 2; }

usage="usage: tools/bootstrap.sh LIST..."
[ $# -gt 0 ] || bad_input "$usage"
for list in "$@"; do
  case $list in
    -h | --help) echo "$usage"; exit 0 ;;
    -*) bad_input "$list: there are no options but --help" ;;
  esac
  [ -f "$list" ] && [ -r "$list" ] ||
    bad_input "$list: expected a package list, found no file that can be read; name another"
done

packages=$(sed -e 's/#.*//' "$@" | tr -s ' \t\n' ' ')
programs=$(sed -n 's/^# Programs://p' "$@" | tr -s ' \t\n' ' ')

if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-query >/dev/null 2>&1; then
  absent=
  for program in $programs; do
    command -v "$program" >/dev/null 2>&1 || absent="$absent $program"
  done
  say "no apt here. Debian names what is needed:$packages"
  [ -z "$absent" ] || die "not found:$absent. Install what provides them and run this again."
  say "the programs are there, going on; CMake will name any library that is missing"
  exit 0
fi

missing=
for package in $packages; do
  case " $programs " in
    *" $package "*) command -v "$package" >/dev/null 2>&1 && continue ;;
  esac
  state=$(dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | head -n 1) || state=
  [ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -eq 0 ]; then
  as_root=
elif command -v sudo >/dev/null 2>&1; then
  as_root=sudo
else
  die "missing packages:$missing. Neither root nor sudo here: ask an administrator to run:" \
    "apt-get install$missing"
fi

# A mirror that is slow or an upgrade that holds the lock gets a few tries, then a clear error.
apt() {
  $as_root env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes apt-get -qq -o Acquire::Retries=3 \
    -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@"
}

retry() {
  for wait_s in 2 10 0; do
    if "$@"; then return 0; fi
    [ "$wait_s" -eq 0 ] || { say "failed, trying again in $wait_s s: $*"; sleep "$wait_s"; }
  done
  return 1
}

say "installing:$missing"
retry apt update || die "apt-get update failed; check the network and the package sources"
# shellcheck disable=SC2086  # a list of package names
retry apt install -y --no-install-recommends $missing >/dev/null ||
  die "apt-get could not install:$missing. The names are Debian 12's; a release without them" \
    "needs their counterparts installed by hand."
say "done"
