#!/bin/sh
# Builds the tarball for systems without packages, and prints its path. It has the files of the package pod-teardown, and
# install.sh.
#
#   tarball.sh
#
# Variables: as deb.sh.
set -eu
cd "$(dirname "$0")/.."
# shellcheck source=packaging/lib.sh
. packaging/lib.sh

name=pod-teardown-$version-$architecture
packaging/stage.sh pod-teardown "$work/$name/files"
cp LICENSE README.md CHANGELOG.md SECURITY.md packaging/tarball/install.sh packaging/tarball/uninstall.sh "$work/$name/"
echo "$version" >"$work/$name/VERSION"
tar -C "$work" --numeric-owner --owner 0 --group 0 --sort name --mtime "@$SOURCE_DATE_EPOCH" -czf "$out/$name.tar.gz" "$name"
echo "$out/$name.tar.gz"
