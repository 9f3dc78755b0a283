#!/bin/sh
# A dockerd in a room of its own: its namespaces of mounts, network and processes go with it, and so does all that it
# started. Nothing of the machine's Docker, network, firewall or /run is touched.
#
#   docker.sh DIRECTORY UNPACKED   runs until it is killed, or its parent ends; docker's socket is DIRECTORY/socket. UNPACKED has its programs
#   docker.sh clean DIRECTORY      removes what a killed one has left on the machine
#
# `docker run --privileged` asks for every capability there is. Its runtime is runc.sh, which leaves out those that this
# machine does not have.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

case $1 in
clean)
    name=pod-teardown-${2##*/}
    for left in /sys/fs/cgroup/"$name" /sys/fs/cgroup/*/"$name"; do
        # What was killed takes a moment to leave.
        tries=0
        while [ -d "$left" ] && ! find "$left" -depth -type d -exec rmdir {} + 2>/dev/null; do
            tries=$((tries + 1))
            [ "$tries" -lt 100 ] || { echo "kind: $left is still in use" >&2; exit 1; }
            sleep 0.1
        done
    done
    # kind mounts it into its nodes, and dockerd makes what it is to mount. One that holds something stays.
    [ ! -d /lib/modules ] || rmdir --ignore-fail-on-non-empty /lib/modules
    rm -rf --one-file-system "$2"
    ;;
inside)
    directory=$2 unpacked=$3
    # Where dockerd and iptables keep locks, and where a containerd of the machine would be found.
    mount -t tmpfs room /run
    ip link set lo up
    PATH=$unpacked/usr/sbin:$unpacked/usr/bin:$PATH
    export PATH
    exec dockerd --host "unix://$directory/socket" --data-root "$directory/data" --config-file "$directory/none.json" \
        --userland-proxy-path "$unpacked/usr/sbin/docker-proxy" \
        --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent "/pod-teardown-${directory##*/}" \
        --add-runtime "able=$here/runc.sh" --default-runtime able
    ;;
*)
    directory=$1 unpacked=$2
    mkdir -p "$directory"
    echo '{}' >"$directory/none.json"
    exec setpriv --pdeathsig KILL -- unshare --mount --propagation private --net --pid --fork --kill-child --mount-proc -- \
        "$here/docker.sh" inside "$directory" "$unpacked"
    ;;
esac
