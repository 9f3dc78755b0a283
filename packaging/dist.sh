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
# A program for another target cannot run here: its manual pages are those of this machine's program.
NATIVE=$root/release/pod-teardown
PROGRAM=$root/$target/release/pod-teardown
[ "$target" != "$host" ] || PROGRAM=$NATIVE
export PROGRAM NATIVE
for needed in "$NATIVE" "$PROGRAM"; do
    [ -x "$needed" ] || { echo "dist: $needed is missing: make dist TARGET=$target" >&2; exit 1; }
    ! grep -q POD_TEARDOWN_CHECKPOINTS "$needed" || { echo "dist: $needed has checkpoints for tests" >&2; exit 1; }
done

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
