#!/usr/bin/env bash
# Runs in the guest, as the unit guest-tests.service: the tests, and then their exit code to the second serial line.
set -uo pipefail
cd /payload || exit 1

# The tests know the agent by the path at which it was built.
agent=$(<agent-path)
mkdir -p "${agent%/*}"
ln -sf /payload/pod-teardown "$agent"
filter=$(<filter)

export HOME=/root RUST_BACKTRACE=0 TERM=dumb
code=0
run() {
    echo "--- $*"
    local started=$SECONDS
    "$@" ${filter:+"$filter"} || code=1
    echo "--- $((SECONDS - started)) s"
}

# An emulated machine is ten times slower, so few tests run at a time. Only tests that depend on systemd, on cgroup v2 or on
# the older kernel run here; `make test` runs all on the host. Large trees take minutes here, and the guest has no btrfs.
run ./node_fs --color never --test-threads 4 --skip cgroups::v1:: --skip subvolumes:: --skip csi:: --skip csi_users:: \
    --skip csi_views:: --skip dirs::many_deep_directories --skip dirs::directory_with_many --skip dirs::five_thousand
# The stops of containers and the removal of their cgroups, with both drivers.
skipped=(--skip why:: --skip bystanders:: --skip crashes:: --skip holds:: --skip hooks:: --skip faults:: --skip objects::)
skipped+=(--skip requests:: --skip volumes:: --skip csi:: --skip breaks::why --skip breaks::sandbox --skip breaks::devices)
skipped+=(--skip breaks::repaired --skip breaks::object --skip breaks::process)
# Twenty pods at once would starve the others.
skipped+=(--skip twenty_pods_terminate_at_once)
run env TESTBED_CGROUP_DRIVER=systemd ./node_teardown --color never --test-threads 2 --skip guest:: "${skipped[@]}"
skipped+=(--skip breaks:: --skip ends::shortened --skip ends::sidecars --skip ends::pod_that --skip ends::container_gets)
run ./node_teardown --color never --test-threads 2 --skip guest:: "${skipped[@]}"

# The package and its service. There is one of them on a machine.
case $filter in
'' | guest::*)
    filter=${filter:-guest::} run env TESTBED_CGROUP_DRIVER=systemd ./node_teardown --color never --test-threads 1
    ;;
esac

echo "$code" >/dev/ttyS1
