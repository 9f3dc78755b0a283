#!/usr/bin/env bash
# Runs the claims on a kind cluster with a program, which is packaged as for a release.
#
#   test.sh PROGRAM
set -euo pipefail
cd "$(dirname "$0")/../.."

scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/packages.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
# Without debug information, which is half of the file.
strip -o "$scratch/pod-teardown" "$1"
export PROGRAM=$scratch/pod-teardown OUT=$scratch
package=$(packaging/deb.sh --fast | sed -n 1p)
image=$(packaging/image.sh | tail -n 1)
tests/testbed/kind/cluster.sh tests/kind/claims.sh "$package" "$image"
