# Starts a program that cannot change this machine: sh -c SCRIPT NAME DIRECTORY PROGRAM ARGUMENT...
# Runs in a mount namespace of its own. A kubelet's files outside of its root lie in DIRECTORY:
# the kernel's settings, the sockets of device plugins below /var/lib/kubelet, the links in /var/log/containers.
set -eu

dir=$1
shift

# On a machine that shares its mounts, those made here would be seen outside. What is in the same directory as DIRECTORY, the
# kubelet's root among it, stays shared: the runtime has to see the volumes.
ground=${dir%/*}
awk -v own="$ground/" '/ shared:/ && index($5 "/", own) != 1 {print $5}' /proc/self/mountinfo | while read -r at; do
    # Mounts come and go on a busy machine: one that is unmounted by now is not needed.
    mount --make-private "$at" 2>/dev/null || ! mountpoint -q "$at"
done

# What other tests have mounted would be kept busy by its copies here. They may be hundreds, and a kubelet has to start soon:
# all at once, some going with others, and then those that were not reached, if any.
copies() {
    awk -v own="$ground/" -v tests="${ground%/*}/ptb" \
        'index($5, tests) == 1 && index($5 "/", own) != 1 {print $5}' /proc/self/mountinfo
}
copies | xargs -r umount --lazy 2>/dev/null || true
copies | while read -r at; do
    umount --lazy "$at" 2>/dev/null || ! mountpoint -q "$at"
done

for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    copy=$dir/sysctl/$setting
    mkdir -p "${copy%/*}"
    cat "/proc/sys/$setting" >"$copy"
    mount --bind "$copy" "/proc/sys/$setting"
done
for place in /var/lib /var/log; do
    mkdir -p "$dir$place"
    mount --bind "$dir$place" "$place"
done

exec "$@"
