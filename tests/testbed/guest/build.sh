#!/bin/sh
# Finds or builds the guest's file system, kernel and initrd, and prints the directory that holds them as its last line:
# Debian bookworm with systemd as PID 1, cgroup v2 alone, containerd and runc.
#
# Built once, from the Debian mirror that apt is configured with, into
# ${XDG_CACHE_HOME:-$HOME/.cache}/pod-teardown/guest/<sum of what it is made of>. Needs root, debootstrap and mkfs.ext4.
#
# Says nothing but that line when there is nothing to build. Two runs at once build once: the second waits.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
suite=bookworm
packages=systemd,systemd-sysv,dbus,linux-image-cloud-amd64,initramfs-tools,zstd,kmod,procps,util-linux,mount,iproute2
packages=$packages,e2fsprogs,ca-certificates,containerd,runc,containernetworking-plugins,busybox-static
# What the initrd needs to find the disk.
modules='virtio_pci virtio_blk ext4'
# Room for what the tests write; the image is sparse.
size=4G

say() { echo "guest: $*" >&2; }
fail() { say "$*"; exit 1; }

cache=${XDG_CACHE_HOME:-$HOME/.cache}/pod-teardown/guest
out=$cache/$suite-$(cksum <"$here/build.sh" | cut -d ' ' -f 1)

is_built() { [ -e "$out/root.img" ] && [ -e "$out/vmlinuz" ] && [ -e "$out/initrd" ]; }

if is_built; then
    echo "$out"
    exit 0
fi

[ "$(id -u)" = 0 ] || fail "debootstrap needs root"
mkdir -p "$cache"
exec 9>"$cache/lock"
if ! flock -n 9; then
    say "another run is building; waiting for it"
    flock 9
fi
if is_built; then
    echo "$out"
    exit 0
fi

say "building a Debian $suite into $out"
say "once per recipe: about a minute on two idle cores; 1.5 GB while it is built, 600 MB afterwards"
started=$(date +%s)

partial=$out.partial
root=$partial/root
rm -rf "$partial"
mkdir -p "$root"
# What debootstrap mounted in there must go before the files do.
clear() {
    grep -o " $root/[^ ]*" /proc/self/mountinfo | sort -r | while read -r mounted; do umount "$mounted"; done
    rm -rf --one-file-system "$partial"
}
trap clear EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The mirror that this machine uses for that release, if it has one; debootstrap knows Debian's own.
# shellcheck disable=SC2016 # those are apt's
mirror=$(apt-get indextargets --format '$(CODENAME) $(SITE)' 'Created-By: Packages' 2>/dev/null |
    sed -n "s/^$suite //p" | head -n 1)

# shellcheck disable=SC2086 # no mirror is no argument
debootstrap --variant=minbase --include="$packages" "$suite" "$root" $mirror >"$partial/log" 2>&1 9>&- || {
    tail -n 20 "$partial/log" "$root/debootstrap/debootstrap.log" >&2 || true
    fail "debootstrap failed"
}
say "debootstrap took $(($(date +%s) - started)) s"

# A small initrd is read fast.
sed -i 's/^MODULES=.*/MODULES=list/; s/^COMPRESS=.*/COMPRESS=zstd/' "$root/etc/initramfs-tools/initramfs.conf"
echo "$modules" | tr ' ' '\n' >"$root/etc/initramfs-tools/modules"
chroot "$root" update-initramfs -u >>"$partial/log" 2>&1 9>&- || {
    tail -n 20 "$partial/log" >&2
    fail "no initrd could be made"
}
cp "$root"/boot/vmlinuz-* "$partial/vmlinuz"
cp "$root"/boot/initrd.img-* "$partial/initrd"

# The tests start a containerd of their own, and no user logs in. What is only for machines that live on takes time.
for unit in containerd.service getty.target systemd-resolved.service systemd-timesyncd.service \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer e2scrub_all.timer e2scrub_reap.service \
    systemd-random-seed.service systemd-pstore.service systemd-update-utmp.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
echo guest >"$root/etc/hostname"
: >"$root/etc/machine-id"
: >"$root/etc/fstab"

# What the run brings along says what is run: /payload/inside.sh.
cat >"$root/etc/systemd/system/guest-tests.service" <<'UNIT'
[Unit]
Description=The tests
After=multi-user.target dbus.socket
FailureAction=poweroff-force
SuccessAction=poweroff-force

[Service]
Type=oneshot
ExecStartPre=mount -o ro /dev/vdb /payload
ExecStart=/payload/inside.sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
# As containerd's own unit: it makes the cgroups of what it runs.
Delegate=yes
LimitNOFILE=1048576
UNIT
mkdir "$root/payload"
mkdir -p "$root/etc/systemd/system/guest.target.wants"
cat >"$root/etc/systemd/system/guest.target" <<'UNIT'
[Unit]
Description=The tests have been started
Requires=multi-user.target
After=multi-user.target
UNIT
ln -s ../guest-tests.service "$root/etc/systemd/system/guest.target.wants/guest-tests.service"
ln -sf guest.target "$root/etc/systemd/system/default.target"

rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "${root:?}"/boot/*
truncate -s "$size" "$partial/root.img"
mkfs.ext4 -q -E lazy_itable_init=1,root_owner=0:0 -L guest -d "$root" "$partial/root.img" >&2
rm -rf --one-file-system "$root"

trap - EXIT
rm -rf "$out"
mv "$partial" "$out"
say "built in $(($(date +%s) - started)) s"
echo "$out"
