#!/bin/sh
# Builds containerd with its shim and ctr, static, from the Go modules beside this script, and prints the directory that
# holds them as its last line. Once, into ${XDG_CACHE_HOME:-$HOME/.cache}/pod-teardown/containerd/<version>.
#
#   build.sh      the version that is pinned here
#   build.sh 2.4  the same, if it is of that release
#
# Says nothing but that line when there is nothing to build. Two runs at once build once: the second waits.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

say() { echo "containerd: $*" >&2; }
fail() { say "$*"; exit 1; }

version=$(sed -n 's|^\(require\)\{0,1\}[[:space:]]*github.com/containerd/containerd/v2 v\([^ ]*\).*|\2|p' "$here/go.mod")
[ -n "$version" ] || fail "cannot read the pinned version from $here/go.mod"
[ $# -le 1 ] || fail "usage: build.sh [RELEASE]"
case $version in
"${1:-$version}" | "${1:-$version}".*) ;;
*) fail "release $1 is neither on PATH nor pinned here, where $version is" ;;
esac

cache=${XDG_CACHE_HOME:-$HOME/.cache}/pod-teardown/containerd
out=$cache/$version
if [ -d "$out" ]; then
    echo "$out"
    exit 0
fi

if ! command -v go >/dev/null || ! (cd "$here" && GOWORK=off go list -m >/dev/null 2>&1); then
    fail "Go 1.26 or newer is needed to build containerd $version: install it and put it on PATH"
fi
mkdir -p "$cache"
exec 9>"$cache/lock"
if ! flock -n 9; then
    say "another run is building; waiting for it"
    flock 9
fi
if [ -d "$out" ]; then
    echo "$out"
    exit 0
fi

say "building containerd $version from Go modules into $out: a minute, once per version"
started=$(date +%s)
partial=$out.partial
rm -rf "$partial"
trap 'rm -rf "$partial"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
stamp="-X github.com/containerd/containerd/v2/version.Version=v$version"
(cd "$here" && GOWORK=off CGO_ENABLED=0 go build -mod=readonly -trimpath -buildvcs=false -ldflags "-s -w $stamp" \
    -tags 'no_btrfs no_devmapper no_zfs' -o "$partial/" tool) 9>&- || fail "the build failed"
mv "$partial" "$out"
say "built in $(($(date +%s) - started)) s"
echo "$out"
