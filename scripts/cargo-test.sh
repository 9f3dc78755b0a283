#!/usr/bin/env bash
# Runs `cargo test` with the given arguments and prints a summary. Fails if cargo fails, if a test was ignored, and if none
# ran.
set -euo pipefail

log=$(mktemp)
trap 'rm -f "$log"' EXIT
started=$SECONDS

code=0
cargo test --no-fail-fast "$@" 2>&1 | tee "$log" || code=$?

counts=$(awk '
    # Code of a process that a test starts and kills.
    /^test .* ignored, no test of its own/ { helpers++ }
    /^test result: / {
        for (i = 2; i <= NF; i++) {
            if ($i == "passed;") passed += $(i - 1)
            if ($i == "failed;") failed += $(i - 1)
            if ($i == "ignored;") ignored += $(i - 1)
        }
    }
    END { print passed + 0, failed + 0, ignored - helpers }
' "$log")
read -r passed failed ignored <<<"$counts"

echo
echo "in $((SECONDS - started)) s:"
if ((failed > 0)); then
    sed -n 's/^test \(.*\) \.\.\. FAILED$/  failed: \1/p' "$log"
fi
echo "$passed passed, $failed failed"

if ((ignored > 0)); then
    echo "$ignored ignored: a test that cannot run must fail" >&2
    exit 1
fi
if ((code != 0)); then
    # Includes compile errors and crashed test programs.
    echo "cargo test failed with exit code $code" >&2
    exit "$code"
fi
if ((passed == 0)); then
    echo "no test ran" >&2
    exit 1
fi
