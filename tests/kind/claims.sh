#!/usr/bin/env bash
# What kubectl shows of a cluster whose worker has lost its kubelet, without pod-teardown and with it. The claims build on one
# another; the first failure ends the run.
#
#   tests/testbed/kind/cluster.sh tests/kind/claims.sh PACKAGE IMAGE
#
# IMAGE is the archive of the installing DaemonSet's image.
set -euo pipefail
# shellcheck source=tests/kind/lib.sh
. "$(dirname "$0")/lib.sh"

package=${1:?usage: claims.sh PACKAGE IMAGE} image=${2:?usage: claims.sh PACKAGE IMAGE}
policies='background foreground orphan'

# As the how-to about the installation has it.
let_it_act='echo POD_TEARDOWN_MODE=auto >>/etc/default/pod-teardown && systemctl restart pod-teardown'
request_a_handover='cp -r /usr/share/pod-teardown/kubelet.service.d /etc/systemd/system/ && systemctl daemon-reload'

# === the kubelet runs ===

package_installs_and_its_service_only_observes_until_its_mode_is_set() {
    local node
    for node in $control $worker; do
        docker exec -i "$node" cp /dev/stdin /root/pod-teardown.deb <"$package"
        show docker exec "$node" dpkg -i /root/pod-teardown.deb
        wait_until "the service of $node is active" docker exec "$node" systemctl is-active pod-teardown
    done
    wait_until "the agent observes" role observing
    show on_worker pod-teardown status
    for node in $control $worker; do
        show docker exec "$node" sh -c "$let_it_act"
    done
    show on_worker sh -c "$request_a_handover"
    wait_until "the agent is standby" role kubelet-alive
    show on_worker pod-teardown status
}

check_reports_no_problem_on_a_kind_node() {
    show on_worker pod-teardown check
    ! grep -E '^ +(WARN|FAIL) ' "$scratch/output" >&2 || fail "check asks for a change"
}

pods_deleted_while_the_kubelet_runs_are_left_to_it() {
    apply workload.yaml KIND=Deployment NAME=early
    kubectl rollout status deployment/early $timeout >/dev/null
    show kubectl delete deployment early --cascade=foreground $timeout
    status_has '"deleted": *0,' || fail "the agent has deleted a pod"
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
        kubectl rollout status "deployment/web-$policy" $timeout >/dev/null
        kubectl rollout status "statefulset/db-$policy" $timeout >/dev/null
        record "web-$policy"
        record "db-$policy"
    done
    kubectl rollout status statefulset/exile $timeout >/dev/null
    kubectl rollout status statefulset/ledger $timeout >/dev/null
    kubectl wait --for=condition=Ready pod/stubborn $timeout >/dev/null
    record exile
    record ledger
    record stubborn
    [ "$(field pod/ledger-0 .spec.nodeName)" = "$worker" ] || fail "ledger-0 is not on the worker"
    show kubectl get pods -o wide
}

# === without kubelet and agent ===

without_the_agent_a_lost_node_blocks_a_foreground_deletion() {
    on_worker systemctl stop pod-teardown
    show on_worker systemctl stop kubelet
    wait_until "the worker is not ready" ready "$worker" Unknown
    show kubectl get nodes
    local kind
    for kind in deployment/web statefulset/db; do
        show kubectl delete "$kind-foreground" --cascade=foreground --wait=false
    done
    stays 20 "the Deployment exists" exists deployment/web-foreground
    exists statefulset/db-foreground >/dev/null || fail "the StatefulSet is deleted"
    show kubectl get deployment,replicaset,statefulset,pods -l app=web-foreground
    show kubectl get deployment web-foreground -o 'jsonpath={.metadata.deletionTimestamp} {.metadata.finalizers}'
    still_run web-foreground db-foreground || fail "the pods were stopped"
}

without_the_agent_a_stateful_pod_stays_on_the_lost_node() {
    wait_until "ledger-0 is deleted" is_deleted pod/ledger-0
    stays 10 "there is no other ledger-0" same_pods ledger
    show kubectl get pods -l app=ledger -o wide
    still_run ledger || fail "ledger-0 was stopped"
    show docker exec "$control" cat /shared/ledger/ledger
}

# === without kubelet, the agent is active ===

with_the_agent_the_foreground_deletion_finishes() {
    show on_worker systemctl start pod-teardown
    wait_until "the agent takes over" role active
    show on_worker pod-teardown status
    wait_until "the Deployment is deleted" absent deployment/web-foreground
    wait_until "the StatefulSet is deleted" absent statefulset/db-foreground
    show kubectl get deployment,replicaset,statefulset,pods -l 'app in (web-foreground, db-foreground)'
    wait_until "no leftover of the pods is on the worker" no_leftovers_of web-foreground db-foreground
}

stateful_pod_moves_after_the_old_one_is_torn_down() {
    wait_until "ledger-0 is ready on the other node" kubectl wait --for=condition=Ready pod/ledger-0 --timeout=1s
    show kubectl get pods -l app=ledger -o wide
    [ "$(field pod/ledger-0 .spec.nodeName)" = "$control" ] || fail "ledger-0 is not on the other node"
    show docker exec "$control" cat /shared/ledger/ledger
    # Exactly in this order: the two pods never ran at the same time.
    diff <(sed 's/^[0-9:]* //' "$CLUSTER_SHARED/ledger/ledger") <(
        echo "starts on $worker"
        echo "gets SIGTERM on $worker"
        echo "exits on $worker"
        echo "starts on $control"
    ) || fail "the ledger differs"
    show on_worker pod-teardown timeline default/ledger-0
    wait_until "no leftover of the old pod is on the worker" no_leftovers_of ledger
}

# === the kubelet runs again ===

the_cluster_shows_the_role_of_the_agent_and_why_a_pod_waits() {
    wait_until "the condition is True" condition_is True KubeletDown
    wait_until "an event reports the takeover" has_node_event TeardownActive
    show kubectl get events --field-selector "involvedObject.kind=Node,source=pod-teardown"
    show plugin nodes
    grep -E "^$worker +Unknown +active +KubeletDown " "$scratch/output" >/dev/null || fail "nodes does not show the role"
    show plugin why stubborn
    grep "is not being deleted" "$scratch/output" >/dev/null || fail "why does not say that it is not being deleted"
}

returning_kubelet_keeps_pods_that_were_not_deleted() {
    show on_worker systemctl start kubelet
    wait_until "the worker is ready" ready "$worker" True
    wait_until "the agent is standby" role kubelet-alive
    wait_until "the condition is False" condition_is False KubeletAlive
    show kubectl get nodes
    show kubectl get pods -o wide
    local app
    for app in {web,db}-{background,orphan}; do
        same_pods "$app" || fail "the pods of $app were replaced"
        still_run "$app" || fail "the pods of $app do not run any more"
    done
    [[ "$(restarts)" =~ ^[0\ ]+$ ]] || fail "containers were restarted"
    wait_until "no leftover of the others is on the worker" no_leftovers_of {web,db}-foreground ledger
}

# === without kubelet, the agent ran before ===

background_deletion_tears_down_pods_of_a_lost_node() {
    show on_worker systemctl stop kubelet
    local kind
    for kind in deployment/web statefulset/db; do
        show kubectl delete "$kind-background" --cascade=background $timeout
    done
    wait_until "their pods are deleted" absent pods -l 'app in (web-background, db-background)'
    show kubectl get pods -l 'app in (web-background, db-background)'
    show on_worker pod-teardown status
    wait_until "no leftover of the pods is on the worker" no_leftovers_of {web,db}-background
}

orphaned_pods_run_until_they_are_deleted() {
    show kubectl delete deployment/web-orphan statefulset/db-orphan --cascade=orphan $timeout
    show kubectl delete replicaset -l app=web-orphan --cascade=orphan $timeout
    local app
    for app in web-orphan db-orphan; do
        stays 5 "the pods of $app are the same" same_pods "$app"
    done
    show kubectl get pods -l 'app in (web-orphan, db-orphan)' \
        -o custom-columns=NAME:.metadata.name,PHASE:.status.phase,OWNERS:.metadata.ownerReferences,DELETED:.metadata.deletionTimestamp
    still_run web-orphan db-orphan || fail "the pods do not run any more"
    show kubectl delete pods -l 'app in (web-orphan, db-orphan)' $timeout
    wait_until "no leftover of the pods is on the worker" no_leftovers_of {web,db}-orphan
}

upgrade_and_crash_during_a_grace_period_move_no_deadline() {
    local data=$CLUSTER_SHARED/stubborn began left
    show kubectl delete pod stubborn --wait=false
    wait_until "its hook runs" test -s "$data/began"
    # The old agent runs its 20 s shutdown, in which the hook ends; the new one continues.
    show on_worker dpkg -i /root/pod-teardown.deb
    wait_until "it gets SIGTERM" grep -q "gets SIGTERM" "$data/log"
    show on_worker systemctl kill --signal=KILL pod-teardown
    wait_until "the pod is deleted" absent pod/stubborn
    show docker exec "$control" cat /shared/stubborn/log
    diff <(sed 's/^[0-9:]* //' "$data/log") <(printf '%s\n' "its hook begins" "its hook ends" "gets SIGTERM") ||
        fail "its log differs"
    began=$(<"$data/began")
    left=$((began + 40 - $(<"$data/alive")))
    echo "  it last ran $left s before its grace period expired"
    # A period that began again would end 20 s later.
    ((left >= -10 && left <= 2)) || fail "its deadline has moved"
    show on_worker pod-teardown timeline default/stubborn
    wait_until "no leftover of it is on the worker" no_leftovers_of stubborn
}

pods_of_an_out_of_service_node_are_stopped_after_the_api_has_dropped_them() {
    local taint=node.kubernetes.io/out-of-service
    same_pods exile || fail "the pods were deleted before"
    show on_worker systemctl stop pod-teardown
    show kubectl delete statefulset exile --wait=false
    stays 5 "the pods exist" same_pods exile
    show kubectl taint nodes "$worker" "$taint=nodeshutdown:NoExecute"
    wait_until "the API server has dropped the pods" absent pods -l app=exile
    show kubectl get pods -l app=exile
    still_run exile || fail "the pods were stopped"
    show on_worker systemctl start pod-teardown
    wait_until "no leftover of the pods is on the worker" no_leftovers_of exile
    show on_worker pod-teardown status
    show kubectl taint nodes "$worker" "$taint-"
}

# With its unit, which systemd restarts each second.
kubelet_that_fails_is_explained_on_the_node_and_in_the_cluster() {
    local drop_in=/run/systemd/system/kubelet.service.d error='exit code 1; last error: failed to parse kubelet flag: unknown flag: --no-such-flag'
    on_worker mkdir -p "$drop_in"
    printf '[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --no-such-flag\n' |
        docker exec -i "$worker" cp /dev/stdin "$drop_in/99-fails.conf"
    on_worker systemctl daemon-reload
    show on_worker systemctl start kubelet
    wait_until "status has the kubelet's error" status_says "$error"
    show on_worker pod-teardown status
    wait_until "the condition has the kubelet's error" condition_says "$error"
    on_worker rm "$drop_in/99-fails.conf"
    on_worker systemctl daemon-reload
    show on_worker systemctl stop kubelet
    wait_until "status says that the unit is not restarted any more" status_shows_unit_down
}

# === the kubelet stays ===

node_is_ready_and_clean_at_the_end() {
    show on_worker systemctl start kubelet
    wait_until "the worker is ready" ready "$worker" True
    wait_until "the agent is standby" role kubelet-alive
    show kubectl get nodes
    # A kubelet takes a minute to remove leftovers of its pods.
    wait_until "crictl shows only sandboxes of running pods" no_unknown_sandbox
    show on_worker crictl pods
    wait_until "ctr shows only containers of running pods" no_unknown_container
    show on_worker crictl ps -a
    no_leftovers_of {web,db}-{background,foreground,orphan} exile ledger stubborn || fail "leftovers are on the worker"
}

node_runs_and_tears_down_pods_as_before() {
    apply workload.yaml KIND=Deployment NAME=late
    kubectl rollout status deployment/late $timeout >/dev/null
    show kubectl get pods -l app=late -o wide
    show kubectl delete deployment late --cascade=foreground $timeout
}

# === nodes without package management ===

purged_package_leaves_nothing_on_the_nodes() {
    local node
    # The copy of the drop-in is the operator's, and locks stay until a reboot, as the how-to about the removal says.
    show on_worker rm /etc/systemd/system/kubelet.service.d/10-pod-teardown.conf
    for node in $control $worker; do
        show docker exec "$node" dpkg --purge pod-teardown
        show docker exec "$node" find /etc /usr /opt /run -xdev -name '*pod-teardown*' ! -path '/run/pod-teardown-locks*'
        [ ! -s "$scratch/output" ] || fail "these are left"
        ! docker exec "$node" test -e /var/lib/pod-teardown || fail "the state is left"
    done
}

installing_daemonset_installs_the_service_on_every_node() {
    load_image pod-teardown-installer:one "$image" one
    apply_deploy installer.yaml pod-teardown-installer:one
    show kubectl -n kube-system logs -l app=pod-teardown-installer -c install
    local node
    for node in $control $worker; do
        docker exec "$node" systemctl is-active pod-teardown >/dev/null || fail "the service of $node is not active"
    done
    wait_until "the agent observes" role observing
    show on_worker pod-teardown version
    show on_worker systemctl status --no-pager -n 0 pod-teardown
    show kubectl -n kube-system get pods -l app=pod-teardown-installer -o wide
}

restarted_installer_changes_nothing_and_a_new_image_upgrades() {
    local before
    show on_worker sh -c "$let_it_act"
    before=$(service_pid)
    kubectl -n kube-system delete pods -l app=pod-teardown-installer --wait >/dev/null
    show kubectl -n kube-system rollout status daemonset/pod-teardown-installer $timeout
    is_service "$before" || fail "the service was restarted"
    load_image pod-teardown-installer:two "$image" two
    apply_deploy installer.yaml pod-teardown-installer:two
    ! is_service "$before" || fail "the service was not restarted"
    [ "$(on_worker cat /usr/local/share/doc/pod-teardown/MARKER)" = two ] || fail "the files are the old ones"
    wait_until "the agent is standby, as its settings say" role kubelet-alive
}

deleted_installer_leaves_the_service_and_the_uninstaller_removes_it() {
    local before node
    before=$(service_pid)
    show kubectl delete -f "$here/../../deploy/installer.yaml"
    stays 5 "the service runs" is_service "$before"
    apply_deploy uninstaller.yaml pod-teardown-installer:two
    show kubectl delete -f "$here/../../deploy/uninstaller.yaml"
    for node in $control $worker; do
        ! docker exec "$node" systemctl is-active pod-teardown >/dev/null || fail "the service of $node is active"
        show docker exec "$node" find /usr/local /etc /opt /run -xdev -name '*pod-teardown*' ! -path '/run/pod-teardown-locks*'
        [ "$(awk '{ print $1 }' "$scratch/output")" = /etc/default/pod-teardown ] || fail "more than the settings is left"
    done
}

# === main ===

# In the order of this file.
mapfile -t claims < <(sed -n 's/^\([a-z_]*\)() {$/\1/p' "$0")
started=$SECONDS
for claim in "${claims[@]}"; do
    echo "=== ${claim//_/ }"
    began=$SECONDS code=0
    # Not in a condition: `set -e` has no effect there.
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
