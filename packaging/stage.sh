#!/bin/sh
# Puts the files of a package below a directory: the only list of what the packages and the tarball contain.
#
#   stage.sh pod-teardown|pod-teardown-gc DIRECTORY
#
# $PROGRAM is the program of pod-teardown (default target/release/pod-teardown). $NATIVE is a program of the same version that
# runs on this machine (default $PROGRAM): it writes the manual pages and the completions.
set -eu
package=$1
mkdir -p "$2"
root=$(cd "$2" && pwd)
cd "$(dirname "$0")/.."
program=${PROGRAM:-target/release/pod-teardown}
native=${NATIVE:-$program}

# put MODE DIRECTORY FILE...
put() {
    mode=$1 to=$root/$2
    shift 2
    mkdir -p "$to"
    for file; do install -m "$mode" "$file" "$to/"; done
}

case $package in
pod-teardown)
    for needed in "$program" "$native"; do
        [ -x "$needed" ] || { echo "stage: $needed is missing: make build" >&2; exit 1; }
    done
    put 755 usr/bin "$program"
    # kubectl finds it by this name.
    ln -s pod-teardown "$root/usr/bin/kubectl-teardown"
    put 644 usr/lib/systemd/system systemd/pod-teardown.service

    share=usr/share
    mkdir -p "$root/$share/man/man8"
    "$native" man "$root/$share/man/man8"
    gzip -9n "$root/$share/man/man8"/*.8
    ln -s pod-teardown.8.gz "$root/$share/man/man8/kubectl-teardown.8.gz"
    for shell in bash zsh fish; do
        case $shell in
        bash) file=bash-completion/completions/pod-teardown ;;
        zsh) file=zsh/vendor-completions/_pod-teardown ;;
        fish) file=fish/vendor_completions.d/pod-teardown.fish ;;
        esac
        mkdir -p "$root/$share/${file%/*}"
        "$native" completion "$shell" >"$root/$share/$file"
    done
    put 644 "$share/pod-teardown" systemd/pod-teardown.default
    put 644 "$share/pod-teardown/kubelet.service.d" systemd/kubelet.service.d/10-pod-teardown.conf

    doc=$share/doc/pod-teardown
    put 644 "$doc" README.md CHANGELOG.md SECURITY.md
    put 644 "$doc/monitoring" monitoring/alerts.yaml monitoring/dashboard.json
    find docs -type d | while read -r directory; do
        find "$directory" -maxdepth 1 -type f | while read -r file; do put 644 "$doc/$directory" "$file"; done
    done
    ;;
pod-teardown-gc)
    put 755 usr/bin deploy/gc-kubeconfig.sh
    mv "$root/usr/bin/gc-kubeconfig.sh" "$root/usr/bin/pod-teardown-gc-kubeconfig"
    put 644 usr/share/pod-teardown-gc deploy/gc-rbac.yaml monitoring/gc-alerts.yaml
    put 644 usr/share/doc/pod-teardown-gc docs/how-to/collect-garbage.md
    ;;
*)
    echo "stage: no such package: $package" >&2
    exit 64
    ;;
esac
