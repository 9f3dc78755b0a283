#!/bin/sh
# Installs kind, once, with `go install`, and prints the directory that holds it.
set -eu

kind=v0.33.0
directory=${XDG_CACHE_HOME:-$HOME/.cache}/pod-teardown/kind/$kind

if [ ! -x "$directory/kind" ]; then
    command -v go >/dev/null || { echo "kind: it is installed with Go 1.26 or newer: put that on PATH" >&2; exit 1; }
    echo "kind: installing kind $kind into $directory" >&2
    GOBIN=$directory CGO_ENABLED=0 go install "sigs.k8s.io/kind@$kind" >&2
fi
echo "$directory"
