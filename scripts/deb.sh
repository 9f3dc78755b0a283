#!/bin/sh
# Builds the Debian package of the built program and prints its path. The program itself generates the manual pages and
# completions.
#
#   deb.sh [FLAG OF cargo deb]...
#
# The program is $CARGO_TARGET_DIR/release/pod-teardown (default target/release).
set -eu
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
program=$target/release/pod-teardown
made=$target/release/package
[ -x "$program" ] || { echo "deb: $program is missing: make build" >&2; exit 1; }

rm -rf "$made"
mkdir -p "$made"
"$program" man "$made"
gzip -9n "$made"/*.8
for shell in bash zsh fish; do
    "$program" completions "$shell" >"$made/pod-teardown.$shell"
done
exec "${CARGO:-cargo}" deb --no-build --locked --quiet "$@"
