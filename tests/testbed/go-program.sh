#!/bin/sh
# Builds a program that no Debian package has in this version, static, from the Go modules of the directory of that name
# beside this script, and prints the directory that holds it as its last line. Once per version, into
# ${XDG_CACHE_HOME:-$HOME/.cache}/pod-teardown/<name>/<version>.
#
#   go-program.sh crictl          the version that is pinned in crictl/go.mod
#   go-program.sh containerd 2.4  containerd with its shim and ctr, if what is pinned is of that release
#
# Prints nothing but that line when there is nothing to build. Two runs at once build once: the second waits.
set -eu

name=${1:-}
# The module, its variable that holds the version, and build tags.
case $name in
containerd)
    module=github.com/containerd/containerd/v2 variable=version.Version
    tags='no_btrfs no_devmapper no_zfs'
    ;;
crictl) module=sigs.k8s.io/cri-tools variable=pkg/version.Version tags= ;;
*) echo "usage: go-program.sh containerd|crictl [RELEASE]" >&2; exit 64 ;;
esac
say() { echo "$name: $*" >&2; }
fail() { say "$*"; exit 1; }
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)/$name

version=$(sed -n "s|^\(require\)\{0,1\}[[:space:]]*$module v\([^ ]*\).*|\2|p" "$here/go.mod")
[ -n "$version" ] || fail "cannot read the pinned version from $here/go.mod"
case $version in
"${2:-$version}" | "${2:-$version}".*) ;;
*) fail "release $2 is neither on PATH nor pinned here, where $version is" ;;
esac

cache=${XDG_CACHE_HOME:-$HOME/.cache}/pod-teardown/$name
out=$cache/$version
if [ -d "$out" ]; then
    echo "$out"
    exit 0
fi

if ! command -v go >/dev/null || ! (cd "$here" && GOWORK=off go list -m >/dev/null 2>&1); then
    fail "Go 1.26.6 or newer is needed to build $name $version: install it and put it on PATH"
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

say "building $name $version from Go modules into $out: a minute, once per version"
started=$(date +%s)
partial=$out.partial
rm -rf "$partial"
trap 'rm -rf "$partial"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
(cd "$here" && GOWORK=off CGO_ENABLED=0 go build -mod=readonly -trimpath -buildvcs=false -tags "$tags" \
    -ldflags "-s -w -X $module/$variable=v$version" -o "$partial/" tool) 9>&- || fail "the build failed"
mv "$partial" "$out"
say "built in $(($(date +%s) - started)) s"
echo "$out"
