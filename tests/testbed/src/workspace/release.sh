# Gives back everything that one Ground took: sh -c SCRIPT NAME DIRECTORY
# Runs as the owner's watchdog: it begins when its standard input ends, because the owner closes it or because it
# was killed. Every step may have been done before, or be done by another copy of this script at the same time; the
# verdict is what is still there at the end.
set -u
trap '' HUP INT TERM PIPE

dir=$1
id=${dir##*/}
case $id in
    ptb[0-9]*x[0-9]*) ;;
    *) echo "$dir was not made by the testbed: left alone" >&2; exit 64 ;;
esac

while read -r _; do :; done

hierarchies=$(awk '/ - cgroup2? /{print $5}' /proc/self/mountinfo)
state=$dir/containerd/state
results=/var/lib/cni/results

# containerd, its shims, runc, ctr, the agent and a kubelet, if they were started with a path below our directory.
runtime() {
    for pid in $(grep -lsF "$dir/" /proc/[0-9]*/cmdline | cut -d/ -f3); do
        read -r name 2>/dev/null </proc/"$pid"/comm || continue
        case $name in containerd | containerd-shim* | runc* | ctr | pod-teardown | kubelet) echo "$pid" ;; esac
    done
}

# Our cgroups in every hierarchy: the plain one, and the slice where systemd makes them.
cgroups() {
    for root in $hierarchies; do
        for cgroup in "$root/$id" "$root/$id.slice"; do
            [ -d "$cgroup" ] && echo "$cgroup"
        done
    done
}

# Whatever runs in our cgroups or was forked by our runtime.
contained() {
    for cgroup in $(cgroups); do find "$cgroup" -name cgroup.procs -exec cat {} + 2>/dev/null; done
    for pid in $(runtime); do
        cat /proc/"$pid"/task/*/children 2>/dev/null
    done
}

# A frozen process does not die.
thaw() {
    for cgroup in $(cgroups); do
        for file in $(find "$cgroup" -name freezer.state 2>/dev/null); do echo THAWED 2>/dev/null >"$file"; done
        for file in $(find "$cgroup" -name cgroup.freeze 2>/dev/null); do echo 0 2>/dev/null >"$file"; done
    done
}

processes() {
    { contained; runtime; } | tr ' ' '\n' | awk '$1 > 1' | sort -un
}

mounts() {
    awk -v at="$dir" '$5 == at || index($5, at "/") == 1 {print $5}' /proc/self/mountinfo | tac
}

round=0
while pids=$(processes) && [ -n "$pids" ] && [ $round -lt 100 ]; do
    thaw
    kill -KILL $pids 2>/dev/null
    round=$((round + 1))
    sleep 0.03
done

# A shim listens outside of our directory; its bundle says where.
grep -hos 'unix://[^"]*/s/[0-9a-f]*' "$state"/io.containerd.runtime.v2.task/*/*/address \
    "$state"/io.containerd.runtime.v2.task/*/*/bootstrap.json | cut -c8- | sort -u | xargs -r rm -f

# So does the CNI library, which remembers results by network and by sandbox.
rm -f "$results/$id"-*
for sandbox in "$dir"/containerd/root/io.containerd.grpc.v1.cri/sandboxes/*; do
    rm -f "$results/cni-loopback-${sandbox##*/}-lo"
done

round=0
while [ -n "$(mounts)" ] && [ $round -lt 20 ]; do
    if [ $round -lt 3 ]; then mounts | xargs -r umount; else mounts | xargs -r umount -l; fi 2>/dev/null
    round=$((round + 1))
done

for port in /sys/class/net/"$id"/brif/*; do
    [ -e "$port" ] && ip link delete "${port##*/}" 2>/dev/null
done
[ -e /sys/class/net/"$id" ] && ip link delete "$id" 2>/dev/null

# Nothing runs in it any more, and without its slices systemd would keep their units.
if cgroups | grep -qF "/$id.slice"; then systemctl stop "$id.slice" 2>/dev/null; fi
round=0
while [ -n "$(cgroups)" ] && [ $round -lt 50 ]; do
    [ $round -gt 0 ] && sleep 0.05
    cgroups | xargs -r -I ROOT find ROOT -depth -type d -exec rmdir {} + 2>/dev/null
    round=$((round + 1))
done

# Last, because the directory is the mark by which a later run finds what is still to do.
left=
for pid in $(processes); do left="$left; process $pid"; done
for mount in $(mounts); do left="$left; mount $mount"; done
for cgroup in $(cgroups); do left="$left; cgroup $cgroup"; done
[ -e /sys/class/net/"$id" ] && left="$left; bridge $id"
if [ -z "$left" ]; then
    rm -rf --one-file-system "$dir" 2>/dev/null
    [ -e "$dir" ] && left="; directory $dir"
fi
[ -z "$left" ] && exit 0
echo "${left#; }" >&2
exit 1
