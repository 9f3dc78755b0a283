# shellcheck shell=bash
# What claims are told with: commands that show themselves, and waits that end.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck disable=SC2034 # the claims use it
read -r control worker <<<"${CLUSTER_NODES:?run this by cluster.sh}"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() { echo "FAILED: $*" >&2; exit 1; }

# Runs a command, and shows it and what it says, as at a terminal.
show() {
    local word line=
    for word; do
        case $word in
        on_worker) line+=" docker exec $worker" ;;
        *[!a-zA-Z0-9_./:=@,-]*) line+=" '$word'" ;;
        *) line+=" $word" ;;
        esac
    done
    echo "\$$line"
    "$@" >"$scratch/said" 2>"$scratch/errors" || {
        cat "$scratch/said" "$scratch/errors" >&2
        return 1
    }
    # Some say on the other stream that there is nothing to say.
    [ -s "$scratch/said" ] || mv "$scratch/errors" "$scratch/said"
    awk '{ print "  " $0 }' "$scratch/said"
}

# until_so SECONDS CLAIM COMMAND...: waits until the command succeeds.
until_so() {
    local patience=$1 what=$2 late=$((SECONDS + $1))
    shift 2
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < late)) || fail "not within $patience s: $what"
        sleep 0.5
    done
}

# for_a_while SECONDS CLAIM COMMAND...: fails as soon as the command does.
for_a_while() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    while ((SECONDS < end)); do
        "$@" >/dev/null 2>&1 || fail "no longer so: $what"
        sleep 1
    done
}

# === the cluster ===

on_worker() { docker exec "$worker" "$@"; }

# apply FILE NAME=VALUE...
apply() {
    local file=$1 edits=(-e "s|@WORKER@|$worker|; s|@IMAGE@|$CLUSTER_IMAGE|") pair
    shift
    for pair; do edits+=(-e "s|@${pair%%=*}@|${pair#*=}|"); done
    sed "${edits[@]}" "$here/$file" | kubectl apply -f - >/dev/null
}

there_is() { kubectl get "$@"; }
there_is_no() { [ -z "$(kubectl get "$@" --ignore-not-found -o name)" ]; }
# field RESOURCE PATH: one field of an object.
field() { kubectl get "$1" -o "jsonpath={$2}"; }
is_deleted() { [ -n "$(field "$1" .metadata.deletionTimestamp)" ]; }
# ready NODE STATUS
ready() { [ "$(field "node/$1" '.status.conditions[?(@.type=="Ready")].status')" = "$2" ]; }

# The pods of that app, by their UIDs, now and when they were remembered.
uids_of() { kubectl get pods -l "app=$1" -o 'jsonpath={.items[*].metadata.uid}'; }
remember() { uids_of "$1" >"$scratch/$1.pods"; }
remembered() {
    local app
    for app; do tr ' ' '\n' <"$scratch/$app.pods"; echo; done
}
same_pods() { [ "$(uids_of "$1")" = "$(<"$scratch/$1.pods")" ]; }
restarts() { kubectl get pods -o 'jsonpath={.items[*].status.containerStatuses[*].restartCount}'; }

# === what is on the worker ===

# Whether the agent's status has what fits the pattern.
told() { grep -Eq "$1" <<<"$(on_worker pod-teardown status --json)"; }
# turn WHOSE: whose turn it is.
turn() { told "\"turn\": *\"$1\""; }

# What crictl shows of a pod, by its UID.
crictl_of() {
    local uid=$1
    shift
    on_worker crictl "$@" -q --label "io.kubernetes.pod.uid=$uid" 2>/dev/null
}
runtime_answers() { on_worker crictl pods -q >/dev/null; }
no_strange_sandbox() {
    local known uid
    runtime_answers || return 1
    known=$(for uid in $(living); do crictl_of "$uid" pods; done)
    [ "$(on_worker crictl pods -q | sort)" = "$(sort <<<"$known")" ]
}
# ctr also sees what the CRI has lost sight of.
no_strange_container() {
    local known uid
    runtime_answers || return 1
    known=$(for uid in $(living); do crictl_of "$uid" pods && crictl_of "$uid" ps -a; done)
    [ "$(on_worker ctr -n k8s.io containers list -q 2>/dev/null | sort)" = "$(sort <<<"$known")" ]
}
# The pods that the API server has on the worker.
living() { kubectl get pods -A --field-selector "spec.nodeName=$worker" -o 'jsonpath={.items[*].metadata.uid}'; }
# run_on APP...: whether all containers of the pods that were remembered run, as crictl shows them.
run_on() {
    local uid all
    for uid in $(remembered "$@"); do
        all=$(crictl_of "$uid" ps -a | sort)
        [ -n "$all" ] && [ "$all" = "$(crictl_of "$uid" ps --state running | sort)" ] || return 1
    done
}

# left_of APP...: prints what the worker still has of the pods that were remembered.
left_of() {
    local uid
    for uid in $(remembered "$@"); do
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
# Not to see anything is not to see that there is nothing.
nothing_left_of() { runtime_answers && [ -z "$(left_of "$@")" ]; }
