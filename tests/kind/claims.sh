#!/usr/bin/env bash
# What a user sees of a cluster whose worker has lost its kubelet, with kubectl from outside: without pod-teardown, and with
# it. The claims follow one another, as one story; the first that does not hold ends it.
#
#   tests/testbed/kind/cluster.sh tests/kind/claims.sh PACKAGE
set -euo pipefail
# shellcheck source=tests/kind/lib.sh
. "$(dirname "$0")/lib.sh"

package=${1:?usage: claims.sh PACKAGE}
policies='background foreground orphan'

# === the kubelet lives ===

the_package_installs_and_its_service_stands_by() {
    local node
    for node in $control $worker; do
        docker exec -i "$node" cp /dev/stdin /root/pod-teardown.deb <"$package"
        show docker exec "$node" dpkg -i /root/pod-teardown.deb
        until_so 30 "the service of $node is active" docker exec "$node" systemctl is-active pod-teardown
    done
    until_so 30 "the agent stands by for the kubelet" turn kubelet
    show on_worker pod-teardown status
}

check_asks_for_no_change_on_a_node_of_kind() {
    show on_worker pod-teardown check
    ! grep -v '^ok ' "$scratch/said" >&2 || fail "check asks for a change"
}

what_is_deleted_while_the_kubelet_lives_is_left_to_it() {
    apply workload.yaml KIND=Deployment NAME=early
    kubectl rollout status deployment/early --timeout=60s >/dev/null
    show kubectl delete deployment early --cascade=foreground --timeout=60s
    told '"deleted": *0,' || fail "the agent has deleted a pod"
}

two_pods_run_for_each_kind_and_policy() {
    local policy
    for policy in $policies; do
        apply workload.yaml KIND=Deployment "NAME=web-$policy"
        apply workload.yaml KIND=StatefulSet "NAME=db-$policy"
    done
    apply workload.yaml KIND=StatefulSet NAME=exile
    apply ledger.yaml
    apply stubborn.yaml
    for policy in $policies; do
        kubectl rollout status "deployment/web-$policy" --timeout=120s >/dev/null
        kubectl rollout status "statefulset/db-$policy" --timeout=120s >/dev/null
        remember "web-$policy"
        remember "db-$policy"
    done
    kubectl rollout status statefulset/exile --timeout=60s >/dev/null
    kubectl rollout status statefulset/ledger --timeout=60s >/dev/null
    kubectl wait --for=condition=Ready pod/stubborn --timeout=60s >/dev/null
    remember exile
    remember ledger
    remember stubborn
    [ "$(field pod/ledger-0 .spec.nodeName)" = "$worker" ] || fail "ledger-0 is not on the worker"
    show kubectl get pods -o wide
}

# === the kubelet is gone, and so is the agent ===

without_an_agent_a_lost_node_blocks_a_foreground_deletion() {
    on_worker systemctl stop pod-teardown
    show on_worker systemctl stop kubelet
    until_so 120 "the worker is not ready" ready "$worker" Unknown
    show kubectl get nodes
    local kind
    for kind in deployment/web statefulset/db; do
        show kubectl delete "$kind-foreground" --cascade=foreground --wait=false
    done
    for_a_while 20 "the Deployment is there" there_is deployment/web-foreground
    there_is statefulset/db-foreground >/dev/null || fail "the StatefulSet is gone"
    show kubectl get deployment,replicaset,statefulset,pods -l app=web-foreground
    show kubectl get deployment web-foreground -o 'jsonpath={.metadata.deletionTimestamp} {.metadata.finalizers}'
    run_on web-foreground db-foreground || fail "somebody has stopped the pods"
}

without_an_agent_a_stateful_pod_stays_where_it_was() {
    until_so 60 "ledger-0 is to leave the lost node" is_deleted pod/ledger-0
    for_a_while 10 "there is no other ledger-0" same_pods ledger
    show kubectl get pods -l app=ledger -o wide
    run_on ledger || fail "somebody has stopped ledger-0"
    show docker exec "$control" cat /shared/ledger/ledger
}

# === the kubelet is gone, and the agent takes its place ===

with_the_agent_the_foreground_deletion_ends() {
    show on_worker systemctl start pod-teardown
    until_so 120 "the agent takes over" turn ours
    show on_worker pod-teardown status
    until_so 60 "the Deployment is gone" there_is_no deployment/web-foreground
    until_so 60 "the StatefulSet is gone" there_is_no statefulset/db-foreground
    show kubectl get deployment,replicaset,statefulset,pods -l 'app in (web-foreground, db-foreground)'
    until_so 30 "nothing of the pods is on the worker" nothing_left_of web-foreground db-foreground
}

the_stateful_pod_moves_once_the_old_one_is_gone() {
    until_so 60 "ledger-0 is ready on the other node" kubectl wait --for=condition=Ready pod/ledger-0 --timeout=1s
    show kubectl get pods -l app=ledger -o wide
    [ "$(field pod/ledger-0 .spec.nodeName)" = "$control" ] || fail "ledger-0 is not on the other node"
    show docker exec "$control" cat /shared/ledger/ledger
    # In this order, and nothing else: no two were at work at a time.
    diff <(sed 's/^[0-9:]* //' "$CLUSTER_SHARED/ledger/ledger") <(
        echo "begins on $worker"
        echo "is told to end on $worker"
        echo "has ended on $worker"
        echo "begins on $control"
    ) || fail "the ledger tells of something else"
    show on_worker pod-teardown timeline default/ledger-0
    until_so 30 "nothing of the old one is on the worker" nothing_left_of ledger
}

# === the kubelet lives again ===

a_kubelet_that_comes_back_goes_on_with_the_pods_that_nobody_has_deleted() {
    show on_worker systemctl start kubelet
    until_so 60 "the worker is ready" ready "$worker" True
    until_so 30 "the agent stands by" turn kubelet
    show kubectl get nodes
    show kubectl get pods -o wide
    local app
    for app in {web,db}-{background,orphan}; do
        same_pods "$app" || fail "the pods of $app are others"
        run_on "$app" || fail "the pods of $app do not run any more"
    done
    [[ "$(restarts)" =~ ^[0\ ]+$ ]] || fail "some were started again"
    until_so 30 "nothing of the others is on the worker" nothing_left_of {web,db}-foreground ledger
}

# === the kubelet is gone, and the agent was there before ===

a_background_deletion_ends_the_pods_of_a_lost_node() {
    show on_worker systemctl stop kubelet
    local kind
    for kind in deployment/web statefulset/db; do
        show kubectl delete "$kind-background" --cascade=background --timeout=60s
    done
    until_so 120 "their pods are gone" there_is_no pods -l 'app in (web-background, db-background)'
    show kubectl get pods -l 'app in (web-background, db-background)'
    show on_worker pod-teardown status
    until_so 30 "nothing of the pods is on the worker" nothing_left_of {web,db}-background
}

an_orphaning_deletion_leaves_pods_running_until_they_are_deleted() {
    show kubectl delete deployment/web-orphan statefulset/db-orphan --cascade=orphan --timeout=60s
    show kubectl delete replicaset -l app=web-orphan --cascade=orphan --timeout=60s
    local app
    for app in web-orphan db-orphan; do
        for_a_while 5 "the pods of $app are the same" same_pods "$app"
    done
    show kubectl get pods -l 'app in (web-orphan, db-orphan)' \
        -o custom-columns=NAME:.metadata.name,PHASE:.status.phase,OWNERS:.metadata.ownerReferences,DELETED:.metadata.deletionTimestamp
    run_on web-orphan db-orphan || fail "the pods do not run any more"
    show kubectl delete pods -l 'app in (web-orphan, db-orphan)' --timeout=60s
    until_so 30 "nothing of the pods is on the worker" nothing_left_of {web,db}-orphan
}

an_upgrade_and_a_crash_of_the_agent_in_the_middle_of_a_grace_period_move_no_deadline() {
    local data=$CLUSTER_SHARED/stubborn began left
    show kubectl delete pod stubborn --wait=false
    until_so 30 "its hook runs" test -s "$data/began"
    # The old agent goes on for its 20 seconds, in which the hook ends; the new one has the rest.
    show on_worker dpkg -i /root/pod-teardown.deb
    until_so 30 "it is told to end" grep -q "is told to end" "$data/story"
    show on_worker systemctl kill --signal=KILL pod-teardown
    until_so 40 "the pod is gone" there_is_no pod/stubborn
    show docker exec "$control" cat /shared/stubborn/story
    diff <(sed 's/^[0-9:]* //' "$data/story") <(printf '%s\n' "its hook begins" "its hook ends" "is told to end") ||
        fail "it was told something else"
    began=$(<"$data/began")
    left=$((began + 40 - $(<"$data/alive")))
    echo "  its last sign of life was $left s before its grace period was over"
    ((left >= -2 && left <= 2)) || fail "its deadline has moved"
    show on_worker pod-teardown timeline default/stubborn
    until_so 30 "nothing of it is on the worker" nothing_left_of stubborn
}

what_an_out_of_service_node_still_runs_is_stopped_though_the_api_has_dropped_it() {
    local taint=node.kubernetes.io/out-of-service
    same_pods exile || fail "somebody has deleted the pods before"
    show on_worker systemctl stop pod-teardown
    show kubectl delete statefulset exile --wait=false
    for_a_while 5 "the pods are there" same_pods exile
    show kubectl taint nodes "$worker" "$taint=nodeshutdown:NoExecute"
    until_so 120 "the API server has dropped the pods" there_is_no pods -l app=exile
    show kubectl get pods -l app=exile
    run_on exile || fail "somebody has stopped the pods"
    show on_worker systemctl start pod-teardown
    until_so 120 "nothing of the pods is on the worker" nothing_left_of exile
    show on_worker pod-teardown status
    show kubectl taint nodes "$worker" "$taint-"
}

# === the kubelet lives for good ===

the_node_is_ready_and_clean_in_the_end() {
    show on_worker systemctl start kubelet
    until_so 60 "the worker is ready" ready "$worker" True
    until_so 30 "the agent stands by" turn kubelet
    show kubectl get nodes
    # A kubelet takes a minute to remove what is left of pods that it has ended.
    until_so 120 "crictl shows no sandbox but those of living pods" no_strange_sandbox
    show on_worker crictl pods
    until_so 120 "ctr knows no container but those of living pods" no_strange_container
    show on_worker crictl ps -a
    nothing_left_of {web,db}-{background,foreground,orphan} exile ledger stubborn || fail "something of them is on the worker"
}

the_node_runs_and_ends_pods_as_before() {
    apply workload.yaml KIND=Deployment NAME=late
    kubectl rollout status deployment/late --timeout=60s >/dev/null
    show kubectl get pods -l app=late -o wide
    show kubectl delete deployment late --cascade=foreground --timeout=60s
}

# === all of it ===

# In the order in which they stand above.
mapfile -t claims < <(sed -n 's/^\([a-z_]*\)() {$/\1/p' "$0")
started=$SECONDS
for claim in "${claims[@]}"; do
    echo "=== ${claim//_/ }"
    began=$SECONDS code=0
    # Not in a condition: there, errors would not end it.
    set +e
    (set -e; "$claim")
    code=$?
    set -e
    if ((code != 0)); then
        echo "=== FAILED after $((SECONDS - began)) s: ${claim//_/ }"
        show kubectl get nodes,deployments,replicasets,statefulsets,pods -A -o wide || true
        show on_worker pod-teardown status || true
        show on_worker journalctl --no-pager -u pod-teardown -n 60 -o cat || true
        exit 1
    fi
    echo "--- $((SECONDS - began)) s"
    echo
done
echo "${#claims[@]} claims hold, after $((SECONDS - started)) s"
