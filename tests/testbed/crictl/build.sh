#!/bin/sh
# Builds crictl, static, from the Go modules beside this script, and prints the directory that holds it as its last line.
# Once, into ${XDG_CACHE_HOME:-$HOME/.cache}/pod-teardown/crictl/<version>.
#
# Says nothing but that line when there is nothing to build. Two runs at once build once: the second waits.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

say() { echo "crictl: $*" >&2; }
fail() { say "$*"; exit 1; }

version=$(sed -n 's|^\(require\)\{0,1\}[[:space:]]*sigs.k8s.io/cri-tools v\([^ ]*\).*|\2|p' "$here/go.mod")
[ -n "$version" ] || fail "cannot read the pinned version from $here/go.mod"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/pod-teardown/crictl
out=$cache/$version
if [ -d "$out" ]; then
    echo "$out"
    exit 0
fi

if ! command -v go >/dev/null || ! (cd "$here" && GOWORK=off go list -m >/dev/null 2>&1); then
    fail "Go 1.26.6 or newer is needed to build crictl $version: install it and put it on PATH"
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

say "building crictl $version from Go modules into $out: a minute, once per version"
started=$(date +%s)
partial=$out.partial
rm -rf "$partial"
trap 'rm -rf "$partial"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
stamp="-X sigs.k8s.io/cri-tools/pkg/version.Version=v$version"
(cd "$here" && GOWORK=off CGO_ENABLED=0 go build -mod=readonly -trimpath -buildvcs=false -ldflags "-s -w $stamp" \
    -o "$partial/" tool) 9>&- || fail "the build failed"
mv "$partial" "$out"
say "built in $(($(date +%s) - started)) s"
echo "$out"
