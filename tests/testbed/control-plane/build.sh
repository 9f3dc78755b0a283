#!/bin/sh
# Finds or builds etcd and kube-apiserver for the tests and prints the directory that holds both as its last line.
#
#   1. $KUBEBUILDER_ASSETS, if both are in it (whoever sets it answers for the version);
#   2. PATH, if the kube-apiserver there is of the same minor release as the one pinned here;
#   3. otherwise they are built from the Go modules beside this script, once, into
#      ${XDG_CACHE_HOME:-$HOME/.cache}/pod-teardown/control-plane/<versions>.
#
# Says nothing but that line when there is nothing to build. Two runs at once build once: the second waits.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

say() { echo "control-plane: $*" >&2; }
fail() { say "$*"; exit 1; }

# The version at which a go.mod of ours requires a module.
pinned() { sed -n "s|^\(require\)\{0,1\}[[:space:]]*$2 \(v[^ ]*\).*|\2|p" "$here/$1/go.mod" | head -n 1; }
# Replacing a link that another run is about to use would take it away for a moment: only if it must be.
link() { [ "$(readlink "$2")" = "$1" ] || ln -sfn "$1" "$2"; }
has_both() { [ -x "$1/etcd" ] && [ -x "$1/kube-apiserver" ]; }

kubernetes=$(pinned kube-apiserver k8s.io/kubernetes)
etcd=$(pinned etcd go.etcd.io/etcd/server/v3)
if [ -z "$kubernetes" ] || [ -z "$etcd" ]; then
    fail "cannot read the pinned versions from the go.mod files in $here"
fi
minor=${kubernetes%.*}

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
    if has_both "$KUBEBUILDER_ASSETS"; then
        echo "$KUBEBUILDER_ASSETS"
        exit 0
    fi
    say "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS does not hold both etcd and kube-apiserver; looking elsewhere"
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/pod-teardown/control-plane
out=$cache/kubernetes-$kubernetes-etcd-$etcd

if on_path=$(command -v kube-apiserver) && command -v etcd >/dev/null; then
    case $("$on_path" --version 2>/dev/null) in
    "Kubernetes $minor."*)
        # The two may lie in different directories: links bring them together.
        links=$cache/path
        mkdir -p "$links"
        link "$on_path" "$links/kube-apiserver"
        link "$(command -v etcd)" "$links/etcd"
        echo "$links"
        exit 0
        ;;
    esac
fi

if has_both "$out"; then
    echo "$out"
    exit 0
fi

# Distributions' packages are often too old for this release. Asked where go.mod is, an older go may fetch a newer one.
remedy="install Go 1.26 or newer (Debian's golang-go is older) and put it on PATH, or set KUBEBUILDER_ASSETS to a directory with etcd and kube-apiserver $minor"
command -v go >/dev/null || fail "Go is needed to build kube-apiserver $kubernetes: $remedy"
(cd "$here/kube-apiserver" && GOWORK=off go list -m >/dev/null 2>&1) ||
    fail "$(go version) cannot build kube-apiserver $kubernetes: $remedy"

mkdir -p "$cache"
exec 9>"$cache/lock"
if ! flock -n 9; then
    say "another run is building; waiting for it"
    flock 9
fi
if has_both "$out"; then
    echo "$out"
    exit 0
fi

say "building etcd $etcd and kube-apiserver $kubernetes from Go modules into $out"
say "once per version: about 5 minutes on two idle cores, 10 on busy ones; Go's caches take some 3 GB"

partial=$out.partial
rm -rf "$partial"
mkdir -p "$partial"
trap 'rm -rf "$partial"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# build NAME PACKAGE LDFLAGS: one stripped, static binary from the module in the directory NAME.
build() {
    started=$(date +%s)
    (cd "$here/$1" && GOWORK=off CGO_ENABLED=0 go build -mod=readonly -trimpath -buildvcs=false \
        -ldflags "-s -w $3" -o "$partial/$1" "$2") 9>&- || fail "building $1 failed"
    say "$1 built in $(($(date +%s) - started)) s"
}

version=k8s.io/component-base/version
release=${kubernetes#v}
major=${release%%.*}
rest=${release#*.}
build etcd go.etcd.io/etcd/server/v3 ""
build kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver \
    "-X $version.gitVersion=$kubernetes -X $version.gitMajor=$major -X $version.gitMinor=${rest%%.*} -X $version.gitTreeState=clean"

mv "$partial" "$out"
echo "$out"
