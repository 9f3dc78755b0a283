#!/bin/sh
# Installs missing Debian packages and names them.
#
#   need.sh PACKAGE[=PROOF]...
#
# PROOF is a command on PATH or an absolute path. If it exists, the package is not needed: a newer containerd or another
# distribution's protoc is accepted. Without PROOF the package itself must be installed. Silent if nothing is missing.
set -eu

say() { echo "need: $*" >&2; }
fail() { say "$*"; exit 1; }

is_present() {
    case $1 in
    *=/*) [ -e "${1#*=}" ] ;;
    *=*) command -v "${1#*=}" >/dev/null ;;
    *) [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ] ;;
    esac
}

# An ordinary user's PATH often lacks these.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

missing=
for need; do
    is_present "$need" || missing="$missing ${need%%=*}"
done
[ -n "$missing" ] || exit 0

command -v apt-get >/dev/null || fail "these Debian packages, or your distribution's equivalents, are missing:$missing"
[ "$(id -u)" = 0 ] || fail "missing:$missing; run this as root, or first: sudo apt-get install$missing"

say "installing from Debian:$missing"
for package in $missing; do
    case $package in
    containerd | prometheus)
        [ ! -d /run/systemd/system ] || say "Debian's $package starts as a service; nothing here uses it, and you may stop it"
        ;;
    esac
done
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt_get() { DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1 </dev/null; }

apt_get update || say "apt-get update failed; using the present package lists"
# No installed package may be removed for a test.
# shellcheck disable=SC2086 # a list of names
apt_get install -y --no-install-recommends --no-remove $missing || {
    cat "$log" >&2
    fail "apt-get could not install:$missing"
}
for need; do
    is_present "$need" || fail "${need%%=*} is installed, but ${need#*=} is missing"
done
