#!/bin/sh
# Finds or builds what a cluster of kind needs where no image registry is in reach, and prints the directory that holds it
# as its last line:
#
#   node.tar     a node image: Debian bookworm with systemd, containerd, kubeadm, kubelet and the control plane's images
#   tools/       kubectl
#   docker/      Debian's dockerd and docker, unpacked and not installed: no service starts on this machine
#
# Built once, from the Debian mirror that apt is configured with and from Go modules, into
# ${XDG_CACHE_HOME:-$HOME/.cache}/pod-teardown/kind/<sum of what it is made of>. Needs root, debootstrap and Go.
#
# Says nothing but that line when there is nothing to build. Two runs at once build once: the second waits.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
suite=bookworm
packages=systemd,systemd-sysv,dbus,runc,containernetworking-plugins,iproute2,iptables,conntrack,ethtool,socat
packages=$packages,procps,kmod,util-linux,mount,ca-certificates,libseccomp2,iputils-ping
# What is for machines that have hardware, a console, or the kernel for themselves.
masked='systemd-sysctl.service systemd-modules-load.service systemd-logind.service systemd-random-seed.service
    systemd-pstore.service systemd-update-utmp.service proc-sys-fs-binfmt_misc.automount dev-hugepages.mount
    sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount getty.target console-getty.service
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer e2scrub_all.timer e2scrub_reap.service'

say() { echo "kind: $*" >&2; }
fail() { say "$*"; exit 1; }

sum=$(cd "$here" && { find node -type f -print0 | sort -z | xargs -0 cat -- ; cat build.sh archive.sh ../containerd/go.mod ../crictl/go.mod \
    ../control-plane/etcd/go.mod ../control-plane/kubernetes/go.mod; } | cksum | cut -d ' ' -f 1)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/pod-teardown/kind
out=$cache/$suite-$sum

if [ -e "$out/node.tar" ]; then
    echo "$out"
    exit 0
fi

[ "$(id -u)" = 0 ] || fail "debootstrap needs root"
command -v go >/dev/null || fail "Kubernetes and containerd are built with Go 1.26 or newer: install it and put it on PATH"
mkdir -p "$cache"
exec 9>"$cache/lock"
if ! flock -n 9; then
    say "another run is building; waiting for it"
    flock 9
fi
if [ -e "$out/node.tar" ]; then
    echo "$out"
    exit 0
fi

begun=$(date +%s)
say "building a node image into $out"
say "once per recipe: about 7 minutes on two idle cores, less after test-cluster; 3 GB while it is built, 1.2 GB afterwards"

partial=$out.partial
root=$partial/root
# What was mounted in there must go before the files do, and before that the containerd that fills the image.
clear() {
    [ -z "${containerd:-}" ] || kill "$containerd" 2>/dev/null || true
    grep -o " $partial/[^ ]*" /proc/self/mountinfo | sort -r | while read -r mounted; do umount "$mounted"; done
    rm -rf --one-file-system "$partial"
}
trap clear EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
clear
mkdir -p "$root" "$partial/images" "$partial/tools" "$partial/docker"

# === programs ===

# Those of older releases are for tests without a cluster of kind, and without kubeadm.
unset KUBERNETES_VERSION
programs=$("$here/../control-plane/build.sh" node-image 9>&-)
install -m 755 "$programs/kubectl" "$partial/tools/"
# Not the kubelet's: tests that run meanwhile would see its process, and their agents would cancel stop requests.
version=$("$programs/kubeadm" version -o short)
runtime=$("$here/../go-program.sh" containerd 9>&-)
crictl=$("$here/../go-program.sh" crictl 9>&-)


(cd "$partial/docker" && apt-get download docker.io >../log 2>&1 && dpkg -x docker.io_*.deb . && rm docker.io_*.deb) || {
    cat "$partial/log" >&2
    fail "apt-get could not download docker.io"
}

# === files ===

started=$(date +%s)
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

cp -r "$here/node/." "$root/"
echo "$version" >"$root/kind/version"
for program in kubeadm kubelet kubectl; do
    install -m 755 "$programs/$program" "$root/usr/bin/"
done
install -m 755 "$runtime"/* "$crictl/crictl" "$root/usr/local/bin/"
mkdir -p "$root/opt/cni/bin" "$root/etc/cni/net.d"
cp -a "$root"/usr/lib/cni/. "$root/opt/cni/bin/"

for unit in $masked; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
chroot "$root" systemctl enable --quiet containerd.service kubelet.service
chroot "$root" systemctl set-default --quiet multi-user.target
printf '[Journal]\nReadKMsg=no\n' >"$root/etc/systemd/journald.conf"
: >"$root/etc/fstab"
# Each node gets its own.
: >"$root/etc/machine-id"
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/doc/* "$root"/usr/share/locale/*

# === images ===

# As kubeadm names them; that of each program holds nothing else.
for image in $("$programs/kubeadm" config images list --kubernetes-version "$version"); do
    name=${image##*/} name=${name%%:*}
    mkdir -p "$partial/rootfs/usr/local/bin"
    case $name in
    # Left out of the cluster: tests use the API server, and no Service.
    kube-proxy | coredns) continue ;;
    pause)
        mkdir "$partial/rootfs/bin"
        cp "$(command -v busybox)" "$partial/rootfs/bin/busybox"
        sed -i "s|@PAUSE@|$image|" "$root/etc/containerd/config.toml"
        set -- /bin/busybox sleep 1000000000
        ;;
    *)
        cp "$programs/$name" "$partial/rootfs/usr/local/bin/"
        set -- "$name"
        ;;
    esac
    "$here/archive.sh" "$image" "$partial/rootfs" "$partial/images/$name.tar" "$@"
    rm -rf "$partial/rootfs"
done

# A containerd takes them in, and its files become those of each node's.
cat >"$partial/containerd.toml" <<TOML
version = 3
root = '$partial/store'
state = '$partial/state'
disabled_plugins = ['io.containerd.cri.v1.images', 'io.containerd.cri.v1.runtime', 'io.containerd.grpc.v1.cri',
    'io.containerd.nri.v1.nri']
[grpc]
address = '$partial/containerd.sock'
TOML
"$runtime/containerd" --config "$partial/containerd.toml" >"$partial/log" 2>&1 9>&- &
containerd=$!
ctr() { "$runtime/ctr" --address "$partial/containerd.sock" --namespace k8s.io "$@"; }
tries=0
until ctr version >/dev/null 2>&1; do
    tries=$((tries + 1))
    if [ "$tries" -gt 150 ] || ! kill -0 "$containerd" 2>/dev/null; then
        tail -n 20 "$partial/log" >&2
        fail "containerd does not answer"
    fi
    sleep 0.2
done
for archive in "$partial"/images/*.tar; do
    ctr images import --no-unpack --local --label io.cri-containerd.image=managed "$archive" >&2
done
kill "$containerd"
wait "$containerd" || true
containerd=
mkdir -p "$root/var/lib/containerd"
for part in io.containerd.content.v1.content io.containerd.metadata.v1.bolt; do
    cp -a "$partial/store/$part" "$root/var/lib/containerd/"
done

tar -C "$root" --numeric-owner -cf "$partial/node.tar" .
for rest in root images store state log containerd.toml containerd.sock; do
    rm -rf --one-file-system "${partial:?}/$rest"
done

trap - EXIT
rm -rf "$out"
mv "$partial" "$out"
say "built in $(($(date +%s) - begun)) s"
echo "$out"
