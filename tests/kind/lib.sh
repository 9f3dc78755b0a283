# shellcheck shell=bash
# Helpers of the claims: commands that print themselves, and waits with a limit.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck disable=SC2034 # the claims use it
read -r control worker <<<"${CLUSTER_NODES:?run this by cluster.sh}"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() { echo "FAILED: $*" >&2; exit 1; }

# Runs a command; prints it and its output, as at a terminal.
show() {
    local word line=
    for word; do
        case $word in
        on_worker) line+=" docker exec $worker" ;;
        plugin) line+=' kubectl teardown' ;;
        *[!a-zA-Z0-9_./:=@,-]*) line+=" '$word'" ;;
        *) line+=" $word" ;;
        esac
    done
    echo "\$$line"
    "$@" >"$scratch/output" 2>"$scratch/errors" || {
        cat "$scratch/output" "$scratch/errors" >&2
        return 1
    }
    # Some commands print to stderr that there is no output.
    [ -s "$scratch/output" ] || mv "$scratch/errors" "$scratch/output"
    awk '{ print "  " $0 }' "$scratch/output"
}

# Limit of each wait, for a machine under load: no claim is about how soon something happens.
patience=300
timeout=--timeout=${patience}s

# wait_until CLAIM COMMAND...: waits until the command succeeds.
wait_until() {
    local what=$1 late=$((SECONDS + patience))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < late)) || fail "not within $patience s: $what"
        sleep 0.5
    done
}

# stays SECONDS CLAIM COMMAND...: fails as soon as the command does.
stays() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    while ((SECONDS < end)); do
        "$@" >/dev/null 2>&1 || fail "no longer so: $what"
        sleep 1
    done
}

# === the cluster ===

on_worker() { docker exec "$worker" "$@"; }
# kubectl teardown, as a user of the cluster.
plugin() { docker exec -e KUBECONFIG=/etc/kubernetes/admin.conf "$control" kubectl teardown "$@"; }

# condition_is STATUS REASON: of the worker's condition PodTeardownActive.
condition_is() {
    local path='{.status.conditions[?(@.type=="PodTeardownActive")]'
    [ "$(kubectl get node "$worker" -o "jsonpath=$path.status}:$path.reason}")" = "$1:$2" ]
}
# condition_says TEXT, status_says TEXT: whether the condition's message or the agent's status contains the text.
condition_says() {
    kubectl get node "$worker" -o 'jsonpath={.status.conditions[?(@.type=="PodTeardownActive")].message}' | grep -Fq -- "$1"
}
status_says() { grep -Fq -- "$1" <<<"$(on_worker pod-teardown status)"; }
# A unit whose program had exited with an error before it was stopped may be failed.
status_shows_unit_down() { grep -Eq 'kubelet.service (has failed|is stopped)' <<<"$(on_worker pod-teardown status)"; }
has_node_event() { kubectl get events --field-selector "involvedObject.kind=Node,reason=$1" -o name | grep -q .; }

# apply FILE NAME=VALUE...
apply() {
    local file=$1 edits=(-e "s|@WORKER@|$worker|; s|@IMAGE@|$CLUSTER_IMAGE|") pair
    shift
    for pair; do edits+=(-e "s|@${pair%%=*}@|${pair#*=}|"); done
    sed "${edits[@]}" "$here/$file" | kubectl apply -f - >/dev/null
}

exists() { kubectl get "$@"; }
absent() { [ -z "$(kubectl get "$@" --ignore-not-found -o name)" ]; }
# field RESOURCE PATH: one field of an object.
field() { kubectl get "$1" -o "jsonpath={$2}"; }
is_deleted() { [ -n "$(field "$1" .metadata.deletionTimestamp)" ]; }
# ready NODE STATUS
ready() { [ "$(field "node/$1" '.status.conditions[?(@.type=="Ready")].status')" = "$2" ]; }

# UIDs of an app's pods, now and as recorded.
uids_of() { kubectl get pods -l "app=$1" -o 'jsonpath={.items[*].metadata.uid}'; }
record() { uids_of "$1" >"$scratch/$1.pods"; }
recorded() {
    local app
    for app; do tr ' ' '\n' <"$scratch/$app.pods"; echo; done
}
same_pods() { [ "$(uids_of "$1")" = "$(<"$scratch/$1.pods")" ]; }
restarts() { kubectl get pods -o 'jsonpath={.items[*].status.containerStatuses[*].restartCount}'; }

# === the worker ===

# Whether the agent's status matches the pattern.
status_has() { grep -Eq "$1" <<<"$(on_worker pod-teardown status -o json)"; }
# role NAME: whether the agent has this role, or is on standby for this reason.
role() { status_has "\"(role|reason)\": *\"$1\""; }

# crictl's output for a pod's UID.
crictl_of() {
    local uid=$1
    shift
    on_worker crictl "$@" -q --label "io.kubernetes.pod.uid=$uid" 2>/dev/null
}
runtime_answers() { on_worker crictl pods -q >/dev/null; }
no_unknown_sandbox() {
    local known uid
    runtime_answers || return 1
    known=$(for uid in $(running_pods); do crictl_of "$uid" pods; done)
    [ "$(on_worker crictl pods -q | sort)" = "$(sort <<<"$known")" ]
}
# ctr also shows containers that the CRI does not.
no_unknown_container() {
    local known uid
    runtime_answers || return 1
    known=$(for uid in $(running_pods); do crictl_of "$uid" pods && crictl_of "$uid" ps -a; done)
    [ "$(on_worker ctr -n k8s.io containers list -q 2>/dev/null | sort)" = "$(sort <<<"$known")" ]
}
# UIDs of the API server's pods on the worker.
running_pods() { kubectl get pods -A --field-selector "spec.nodeName=$worker" -o 'jsonpath={.items[*].metadata.uid}'; }
# still_run APP...: whether all containers of the recorded pods run.
still_run() {
    local uid all
    for uid in $(recorded "$@"); do
        all=$(crictl_of "$uid" ps -a | sort)
        [ -n "$all" ] && [ "$all" = "$(crictl_of "$uid" ps --state running | sort)" ] || return 1
    done
}

# leftovers_of APP...: prints the leftovers of the recorded pods on the worker.
leftovers_of() {
    local uid
    for uid in $(recorded "$@"); do
        crictl_of "$uid" pods | sed 's/^/sandbox /'
        crictl_of "$uid" ps -a | sed 's/^/container /'
        # shellcheck disable=SC2016 # for the node's shell
        on_worker sh -c '
            grep -F "$1" /proc/1/mountinfo | cut -d " " -f 5
            ls -d "/var/lib/kubelet/pods/$1" /var/log/pods/*"$1"* 2>/dev/null
            find /sys/fs/cgroup -type d \( -name "*$1*" -o -name "*$(echo "$1" | tr - _)*" \) -prune
        ' sh "$uid"
    done
}
# Fails if the runtime does not answer: an empty list proves nothing then.
no_leftovers_of() { runtime_answers && [ -z "$(leftovers_of "$@")" ]; }

# === the installing DaemonSet ===

# apply_deploy FILE IMAGE
apply_deploy() {
    sed "s|pod-teardown-installer:0.1.0|$2|" "$here/../../deploy/$1" | kubectl apply -f - >/dev/null
    show kubectl -n kube-system rollout status daemonset/pod-teardown-installer $timeout
}
service_pid() { on_worker systemctl show --value -p MainPID pod-teardown; }
is_service() { [ "$(service_pid)" = "$1" ]; }
# load_image NAME ARCHIVE MARKER: loads the image with one more file among those of the tarball.
load_image() {
    local at=$scratch/image
    rm -rf "$at"
    mkdir -p "$at/files" "$at/layer"
    tar -C "$at/files" -xf "$2"
    tar -C "$at/layer" -xf "$at/files/layer.tar"
    echo "$3" >"$at/layer/pod-teardown/files/usr/share/doc/pod-teardown/MARKER"
    "$here/../testbed/kind/archive.sh" "$1" "$at/layer" "$scratch/image.tar" /bin/on-host
    kind load image-archive --name pod-teardown "$scratch/image.tar"
}
