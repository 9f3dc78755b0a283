#!/bin/sh
# Builds what a release has for a target of Rust, and prints the directory: the binary, .deb, .rpm, the tarball and the image of
# the installer, with their sums.
#
#   dist.sh TARGET
#
# Variables: $BUSYBOX as in image.sh, for another target than this machine's; $VERSION and $OUT as in deb.sh (default target/dist/VERSION).
set -eu
target=$1
cd "$(dirname "$0")/.."
root=${CARGO_TARGET_DIR:-target}
VERSION=${VERSION:-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)}
OUT=${OUT:-$root/dist/$VERSION}
export VERSION OUT TARGET="$target"
mkdir -p "$OUT"

host=$(rustc -vV | sed -n 's/^host: //p')
PROGRAM=$root/$target/release/pod-teardown
NATIVE=$PROGRAM
if [ "$target" != "$host" ]; then
    # It cannot run here. Its manual pages are those of this machine's program.
    NATIVE=$root/release/pod-teardown
    [ -x "$NATIVE" ] || { echo "dist: $NATIVE is missing: make build" >&2; exit 1; }
fi
export PROGRAM NATIVE
[ -x "$PROGRAM" ] || { echo "dist: $PROGRAM is missing: make dist TARGET=$target" >&2; exit 1; }

binary=pod-teardown-$VERSION-${target%%-*}
{
    cp "$PROGRAM" "$OUT/$binary"
    echo "$OUT/$binary"
    packaging/deb.sh
    packaging/rpm.sh
    packaging/tarball.sh
    if [ "$target" = "$host" ] || [ -n "${BUSYBOX:-}" ]; then
        packaging/image.sh
    else
        echo "dist: no image: \$BUSYBOX must be a static busybox for $target" >&2
    fi
} >"$OUT/.made"
cd "$OUT"
sed 's|.*/||' .made | sort -u >.names
rm .made
# Those of another target, which were built before, stay.
touch SHA256SUMS
{ grep -vFf .names SHA256SUMS || true; xargs sha256sum <.names; } | sort -k 2 >.sums
mv .sums SHA256SUMS
rm .names
pwd
