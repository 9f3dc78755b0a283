#!/usr/bin/env bash
# Runs lists of make's targets at the same time, the targets of a list one after the other. Each line of output begins with
# the target's name. When a target fails, the others are stopped, and the end of its output is shown again.
#
#   side-by-side.sh 'TARGET...' 'TARGET...'
set -uo pipefail

logs=$(mktemp -d)
declare -A list_of
stop() {
    for list in "${!list_of[@]}"; do
        kill -- "-$list" 2>/dev/null
    done
    wait
    rm -rf "$logs"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

run() {
    local target started
    for target in $1; do
        started=$SECONDS
        echo "$target" >"$logs/current.$BASHPID"
        make --no-print-directory "$target" 2>&1 | tee "$logs/$target" | sed -u "s/^/$target: /" || return 1
        echo "=== $target: $((SECONDS - started)) s" | tee -a "$logs/times"
    done
}

# A process group for each list, so that all of it can be stopped.
set -m
for list; do
    run "$list" &
    list_of[$!]=$list
done
set +m

while ((${#list_of[@]} > 0)); do
    code=0
    wait -n -p ended "${!list_of[@]}" || code=$?
    unset "list_of[$ended]"
    if ((code != 0)); then
        target=$(<"$logs/current.$ended")
        cat "$logs/times" 2>/dev/null
        echo "=== $target FAILED. The end of its output:"
        tail -n 200 "$logs/$target"
        exit 1
    fi
done
cat "$logs/times"
