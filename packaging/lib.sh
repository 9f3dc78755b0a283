# shellcheck shell=sh
# What the builders of packages share. Sourced at the root of the source tree.

version=${VERSION:-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)}
# As the architecture's name in Rust's targets.
architecture=${TARGET:-$(uname -m)-unknown-linux-gnu}
architecture=${architecture%%-*}
out=${OUT:-${CARGO_TARGET_DIR:-target}/dist}
mkdir -p "$out"
out=$(cd "$out" && pwd)

# Commands below give the same result for every user that builds.
umask 022
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

# Of the packages, and not of the file names of archives: a pre-release is older than its release.
# shellcheck disable=SC2034 # of the builders
package_version=$(echo "$version" | sed 's/-/~/')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
