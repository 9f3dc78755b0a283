#!/usr/bin/env bash
# Runs tests in the guest: pods' files, mounts and cgroups, the teardowns that depend on cgroups with both cgroup drivers,
# and the package with its service, on a machine as most nodes are, with systemd and cgroup v2 alone.
#
#   test.sh [FILTER]    only tests whose names hold this
#
# `build.sh → cargo test --no-run → payload → run.sh → inside.sh`. Fails if a test fails, if one was ignored, and if fewer
# programs came to an end than were started.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "guest: $*" >&2; exit 1; }

guest=$("$here/build.sh")
started=$SECONDS

scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/payload.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
payload=$scratch/payload
mkdir "$payload"

cd "$here/../../.."
# Cargo names each program that it has built, with the name of its test at the beginning of the file's.
${CARGO:-cargo} test --no-run --locked --workspace --features system-tests --test node_fs --test node_teardown 2>&1 |
    tee "$scratch/built"
for test in node_fs node_teardown; do
    program=$(sed -n "s|.*Executable .*(\(.*/$test-[0-9a-f]*\))$|\1|p" "$scratch/built")
    [ -x "$program" ] || fail "cargo does not say where $test is"
    strip -o "$payload/$test" "$program"
done
# Cargo has put the agent two directories up, and the tests know it by that path.
agent=$(realpath "${program%/deps/*}/pod-teardown")
# Without debug information, which is half of the file: the guest unpacks it at each installation.
strip -o "$payload/pod-teardown" "$agent"
echo "$agent" >"$payload/agent-path"
echo "${1:-}" >"$payload/filter"
cp systemd/pod-teardown.default "$payload/settings"
cp docs/reference/service.md "$payload/"
# The same program in its package, twice: what is installed, and what it is upgraded to.
mkdir "$payload/packages"
for package in now next; do
    PROGRAM=$payload/pod-teardown VERSION=0.0.1+$package OUT=$scratch/dist packaging/deb.sh --fast >/dev/null
    mv "$scratch/dist/pod-teardown_0.0.1+$package"_*.deb "$payload/packages/$package.deb"
done
cp "$here/inside.sh" "$payload/"
echo "guest: tests built in $((SECONDS - started)) s"

started=$SECONDS
code=0
"$here/run.sh" "$guest" "$payload" | sed -u 's/\r$//' | tee "$scratch/log" || code=$?

echo
echo "in the guest, in $((SECONDS - started)) s:"
read -r programs ends passed failed ignored <<<"$(awk '
    /^--- .*\.\/node_/ { programs++ }
    /^test result: / {
        ends++
        for (i = 2; i <= NF; i++) {
            if ($i == "passed;") passed += $(i - 1)
            if ($i == "failed;") failed += $(i - 1)
            if ($i == "ignored;") ignored += $(i - 1)
        }
    }
    END { print programs + 0, ends + 0, passed + 0, failed + 0, ignored + 0 }
' "$scratch/log")"
sed -n 's/^test \(.*[^ ]\) *\.\.\. FAILED$/  failed: \1/p' "$scratch/log"
echo "$passed passed, $failed failed"
((code == 0)) || fail "the tests ended with exit code $code"
((ends == programs && failed == 0 && ignored == 0 && passed > 0)) ||
    fail "of $programs programs $ends came to an end; $ignored tests were ignored"
