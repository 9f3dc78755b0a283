#!/bin/sh
# Builds the Debian packages with debhelper, and prints their paths.
#
#   deb.sh [--fast]     --fast hardly compresses them: for tests
#
# Variables: $PROGRAM and $NATIVE as in stage.sh; $VERSION (default Cargo.toml's), $TARGET (a target of Rust, default this
# machine's), $OUT (default target/dist).
set -eu
cd "$(dirname "$0")/.."
# shellcheck source=packaging/lib.sh
. packaging/lib.sh

compression='-Zxz'
[ "${1:-}" != --fast ] || compression='-Zgzip -z1'
case $architecture in
x86_64) debian=amd64 ;;
aarch64) debian=arm64 ;;
*) debian=$architecture ;;
esac

for package in pod-teardown pod-teardown-gc; do
    packaging/stage.sh "$package" "$work/debian/$package"
    licence=$work/debian/$package/usr/share/doc/$package
    cp packaging/debian/copyright "$licence/"
done
# The oldest C library that has all symbols of the program. dpkg-shlibdeps needs the libraries of the architecture for this.
libc=$(readelf --dyn-syms --wide "$work/debian/pod-teardown/usr/bin/pod-teardown" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
sed "s|@LIBC@|${libc#GLIBC_}|" packaging/debian/control >"$work/debian/control"
cp packaging/debian/pod-teardown.* "$work/debian/"
cat >"$work/debian/changelog" <<CHANGELOG
pod-teardown ($package_version) unstable; urgency=medium

  * See CHANGELOG.md.

 -- The pod-teardown maintainers <maintainers@pod-teardown.invalid>  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
CHANGELOG

cd "$work"
# debhelper knows only the older of the two places of units.
cp debian/pod-teardown/usr/lib/systemd/system/pod-teardown.service debian/
export DEB_HOST_ARCH="$debian" DEB_RULES_REQUIRES_ROOT=no
dh_installsystemd
rm -rf debian/pod-teardown/lib
# dh_installchangelogs would take CHANGELOG.md away from the pages.
for package in pod-teardown pod-teardown-gc; do
    gzip -9nc debian/changelog >"debian/$package/usr/share/doc/$package/changelog.gz"
done
dh_lintian
dh_compress -X.md -X.json -X.yaml -X.conf
dh_fixperms
dh_installdeb
dh_gencontrol -- -v"$package_version"
dh_md5sums
# shellcheck disable=SC2086 # two words
dh_builddeb --destdir="$out" -- --root-owner-group $compression >&2
echo "$out/pod-teardown_${package_version}_$debian.deb"
echo "$out/pod-teardown-gc_${package_version}_all.deb"
