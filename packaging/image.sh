#!/bin/sh
# Builds the image of the installing DaemonSet (deploy/installer.yaml) as `docker save` does, and prints its path. It needs no
# Docker: the image has the tarball's files and a static busybox.
#
#   image.sh
#
# Variables: as deb.sh; $BUSYBOX (default /bin/busybox) is a static one for the architecture; $IMAGE is the image's name (default
# pod-teardown-installer:VERSION).
set -eu
cd "$(dirname "$0")/.."
# shellcheck source=packaging/lib.sh
. packaging/lib.sh

busybox=${BUSYBOX:-/bin/busybox}
case $architecture in
x86_64) platform=amd64 ;;
aarch64) platform=arm64 ;;
*) platform=$architecture ;;
esac
root=$work/root
mkdir -p "$root/bin" "$root/tmp"
tar -C "$root" -xzf "$(OUT=$work/tarball packaging/tarball.sh)"
mv "$root/pod-teardown-$version-$architecture" "$root/pod-teardown"
install -m 755 "$busybox" "$root/bin/busybox"
for applet in sh cp rm chroot sleep; do
    ln -s busybox "$root/bin/$applet"
done
install -m 755 deploy/on-host.sh "$root/bin/on-host"

mkdir "$work/image"
tar -C "$root" --numeric-owner --owner 0 --group 0 --sort name --mtime "@$SOURCE_DATE_EPOCH" -cf "$work/image/layer.tar" .
layer=$(sha256sum "$work/image/layer.tar" | cut -d ' ' -f 1)
cat >"$work/image/config.json" <<CONFIG
{"architecture": "$platform", "os": "linux", "created": "$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)",
 "config": {"Env": ["PATH=/bin"], "Entrypoint": ["/bin/on-host"], "Cmd": ["wait"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$layer"]}}
CONFIG
cat >"$work/image/manifest.json" <<MANIFEST
[{"Config": "config.json", "RepoTags": ["${IMAGE:-pod-teardown-installer:$version}"], "Layers": ["layer.tar"]}]
MANIFEST
tar -C "$work/image" --mtime "@$SOURCE_DATE_EPOCH" -cf "$out/pod-teardown-installer-$version-$architecture.tar" \
    manifest.json config.json layer.tar
echo "$out/pod-teardown-installer-$version-$architecture.tar"
