#!/usr/bin/env bash
# Runs a command beside a cluster of kind that lives as long as the command: two nodes, Ready, on which pods can run.
#
#   cluster.sh COMMAND...     for instance: cluster.sh bash
#
# The command finds kubectl, kind and docker on PATH, KUBECONFIG and DOCKER_HOST set, and in
#
#   CLUSTER_NODES   the nodes' names, which are their containers' as well: the control plane's, the worker's
#   CLUSTER_SHARED  the directory that both nodes have as /shared
#   CLUSTER_IMAGE   the name of an image for pods, with busybox
#
# With KIND_NODE_IMAGE=NAME that is the nodes' image, in this machine's Docker, which gets it where it gets images. Else all
# of it comes from build.sh, and runs in a room of its own (docker.sh).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

say() { echo "kind: $*" >&2; }
fail() { say "$*"; exit 1; }

(($# > 0)) || fail "usage: cluster.sh COMMAND..."
PATH=$("$here/kind.sh"):$PATH
built=
if [ -n "${KIND_NODE_IMAGE:-}" ]; then
    command -v kubectl >/dev/null || fail "kubectl is needed on PATH"
    docker version >/dev/null || fail "KIND_NODE_IMAGE=$KIND_NODE_IMAGE needs a Docker that runs, and registries in its reach"
    # It is deleted at the end, so it must not exist before.
    [ -z "$(kind get nodes --name pod-teardown 2>/dev/null)" ] ||
        fail "there is a cluster of that name; if it is not needed: kind delete cluster --name pod-teardown"
else
    built=$("$here/build.sh")
fi

# What a run left that was killed itself: what it had started has died with it.
for left in "${TMPDIR:-/var/tmp}"/kind.??????; do
    [ ! -e "$left/pid" ] || [ -e "/proc/$(cat "$left/pid")" ] || "$here/docker.sh" clean "$left"
done
directory=$(mktemp -d "${TMPDIR:-/var/tmp}/kind.XXXXXX")
echo $$ >"$directory/pid"
room='' network=()
export KUBECONFIG=$directory/kubeconfig

# The nodes' kubelets set these for the whole machine.
kernel_settings=$(cd /proc/sys && grep . vm/overcommit_memory kernel/panic kernel/panic_on_oops)

down() {
    trap - EXIT
    local setting
    for setting in $kernel_settings; do
        echo "${setting#*:}" >"/proc/sys/${setting%%:*}" || say "left: $setting in /proc/sys"
    done
    if [ -n "$room" ]; then
        kill -KILL "$room" 2>/dev/null || true
        wait "$room" 2>/dev/null || true
        "$here/docker.sh" clean "$directory"
    else
        kind delete cluster --quiet --name pod-teardown || say "left: kind delete cluster --name pod-teardown"
        rm -rf --one-file-system "$directory"
    fi
}
trap down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

started=$SECONDS
image=${KIND_NODE_IMAGE:-pod-teardown/node:built}
if [ -n "$built" ]; then
    "$here/docker.sh" "$directory" "$built/docker" >"$directory/log" 2>&1 &
    room=$!
    network=(nsenter "--net=/proc/$room/ns/net" --)
    export DOCKER_HOST=unix://$directory/socket
    PATH=$built/tools:$built/docker/usr/bin:$PATH
    # This machine's settings for registries and proxies do not apply in the nodes.
    unset HTTP_PROXY HTTPS_PROXY http_proxy https_proxy
    for ((tries = 0; tries < 150; tries++)); do
        ! docker version >/dev/null 2>&1 || break
        [ -e "/proc/$room" ] || break
        sleep 0.2
    done
    docker version >/dev/null 2>&1 || {
        tail -n 20 "$directory/log" >&2
        fail "dockerd does not answer"
    }
    docker import --change 'ENTRYPOINT ["/usr/local/bin/entrypoint"]' "$built/node.tar" "$image" >/dev/null
    say "dockerd runs and has the node image, after $((SECONDS - started)) s"
fi

# === the cluster ===

mkdir "$directory/shared"
sed "s|@IMAGE@|$image|; s|@SHARED@|$directory/shared|" "$here/cluster.yaml" >"$directory/cluster.yaml"
kind create cluster --config "$directory/cluster.yaml" --retain >"$directory/kind.log" 2>&1 || {
    cat "$directory/kind.log" >&2
    for node in $(kind get nodes --name pod-teardown 2>/dev/null); do
        say "the last log lines of $node:"
        docker exec "$node" journalctl --no-pager -n 60 -o cat >&2 || docker logs --tail 40 "$node" >&2
    done
    fail "there is no cluster"
}
export CLUSTER_NODES='pod-teardown-control-plane pod-teardown-worker' CLUSTER_SHARED=$directory/shared
export CLUSTER_IMAGE=pod-teardown.test/busybox:1
kubectl() { "${network[@]}" "$(type -P kubectl)" "$@"; }

for node in $CLUSTER_NODES; do
    # The controller manager gives each node its addresses soon after it has joined.
    kubectl wait --for=jsonpath='{.spec.podCIDR}' --timeout=60s "node/$node" >/dev/null
    pods=$(kubectl get node "$node" -o jsonpath='{.spec.podCIDR}')
    sed "s|@PODS@|$pods|" "$here/network.json" |
        docker exec -i "$node" cp /dev/stdin /etc/cni/net.d/10-pods.conflist
done
# A pod that may not stay on the worker has to find room elsewhere.
kubectl taint node pod-teardown-control-plane node-role.kubernetes.io/control-plane:NoSchedule- >/dev/null

mkdir -p "$directory/busybox/bin"
cp "$(type -P busybox)" "$directory/busybox/bin/busybox"
for applet in sh cat date mkdir rmdir sleep sync; do
    ln -s busybox "$directory/busybox/bin/$applet"
done
"$here/archive.sh" "$CLUSTER_IMAGE" "$directory/busybox" "$directory/busybox.tar" sh
kind load image-archive --name pod-teardown "$directory/busybox.tar"

kubectl wait --for=condition=Ready --timeout=120s nodes --all >/dev/null
say "two nodes are Ready, after $((SECONDS - started)) s"

"${network[@]}" "$@"
