#!/bin/sh
# Builds the RPM packages with rpmbuild, and prints their paths.
#
#   rpm.sh [--fast]     --fast hardly compresses them: for tests
#
# Variables: as deb.sh.
set -eu
cd "$(dirname "$0")/.."
# shellcheck source=packaging/lib.sh
. packaging/lib.sh

compression=w19.zstdio
[ "${1:-}" != --fast ] || compression=w1.gzdio
for package in pod-teardown pod-teardown-gc; do
    packaging/stage.sh "$package" "$work/staged"
    install -D -m 644 LICENSE "$work/staged/usr/share/licenses/$package/LICENSE"
done
install -D -m 640 "$work/staged/usr/share/pod-teardown/pod-teardown.default" "$work/staged/etc/default/pod-teardown"
install -D -m 644 packaging/rpm/50-pod-teardown.preset -t "$work/staged/usr/lib/systemd/system-preset"
# Where zsh searches in this family.
mv "$work/staged/usr/share/zsh/vendor-completions" "$work/staged/usr/share/zsh/site-functions"

rpmbuild -bb --quiet --target "$architecture-linux" --define "_topdir $work/rpm" --define "_rpmdir $work/built" \
    --define "_binary_payload $compression" --define "_buildhost pod-teardown" --define 'clamp_mtime_to_source_date_epoch 1' \
    --define 'use_source_date_epoch_as_buildtime 1' --define "staged $work/staged" --define "version $package_version" \
    packaging/rpm/pod-teardown.spec >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
for built in "$work"/built/*/*.rpm; do
    mv "$built" "$out/"
    echo "$out/${built##*/}"
done
