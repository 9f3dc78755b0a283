#!/bin/sh
# Finds or builds programs of the control plane for the tests and prints the directory that holds them as its last line.
#
#   build.sh                          etcd and kube-apiserver
#   build.sh kube-controller-manager  that one alone: few tests need it, and $KUBEBUILDER_ASSETS seldom has it
#   build.sh kubelet                  that one alone, for the same reason
#   build.sh kubectl                  that one alone; any version that is on PATH will do
#   build.sh node-image               all of a kubeadm cluster; always built, as only these are sure to be of one version
#                                     and static, and run in an image that holds nothing else
#
# Of which Kubernetes, $KUBERNETES_VERSION says: a minor release that has a directory here, as 1.36 has kubernetes-1.36.
# Without it, that of the directory kubernetes.
#
#   1. $KUBEBUILDER_ASSETS, if all are in it (its user is responsible for the version);
#   2. PATH, if those of Kubernetes there are of the same minor release as the one pinned here; not for a kubelet;
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
has_all() {
    for name in $wanted; do
        [ -x "$1/$name" ] || return 1
    done
}
# Whether all are on PATH. etcd is of any version, as it is not of Kubernetes, and so is kubectl, as people's are.
fit_on_path() {
    for name in $wanted; do
        command -v "$name" >/dev/null || return 1
        case $name in etcd | kubectl) continue ;; esac
        # To ask it would start a process called kubelet: agents on this machine would take it for theirs.
        [ "$name" = kubelet ] && return 1
        case $("$(command -v "$name")" --version 2>/dev/null) in
        "Kubernetes $minor."*) ;;
        *) return 1 ;;
        esac
    done
}

module=kubernetes
kubernetes=$(pinned "$module" k8s.io/kubernetes)
wanted_version=${KUBERNETES_VERSION:-}
case $kubernetes in
"v${wanted_version:-${kubernetes#v}}" | "v$wanted_version".*) ;;
*)
    module=kubernetes-$wanted_version
    [ -e "$here/$module/go.mod" ] || fail "KUBERNETES_VERSION=$wanted_version is not pinned in any directory of $here"
    kubernetes=$(pinned "$module" k8s.io/kubernetes)
    ;;
esac
etcd=$(pinned etcd go.etcd.io/etcd/server/v3)
if [ -z "$kubernetes" ] || [ -z "$etcd" ]; then
    fail "cannot read the pinned versions from the go.mod files in $here"
fi
minor=${kubernetes%.*}

case "$*" in
'')
    wanted="etcd kube-apiserver"
    versions=kubernetes-$kubernetes-etcd-$etcd
    what="etcd $etcd and kube-apiserver $kubernetes"
    takes="about 5 minutes on two idle cores, 10 on busy ones; Go's caches take some 3 GB"
    ;;
kube-controller-manager | kubelet | kubectl)
    wanted=$1
    # A directory of its own: each appears at once and complete, whichever is built first.
    versions=$1-$kubernetes
    what="$1 $kubernetes"
    takes="about a minute after kube-apiserver, 5 without"
    ;;
node-image)
    wanted="etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kubeadm kubectl"
    versions=node-image-$kubernetes-etcd-$etcd
    what="etcd $etcd, the control plane, kubelet, kubeadm and kubectl $kubernetes"
    takes="about 8 minutes on two idle cores, 2 after test-cluster; Go's caches take some 4 GB"
    ;;
*) fail "usage: build.sh [kube-controller-manager | kubelet | kubectl | node-image]" ;;
esac
# Whether programs that are there already will do.
[ "$*" = node-image ] && found=no || found=yes

if [ "$found" = yes ] && [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
    if has_all "$KUBEBUILDER_ASSETS"; then
        echo "$KUBEBUILDER_ASSETS"
        exit 0
    fi
    say "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS does not hold all of: $wanted; looking elsewhere"
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/pod-teardown/control-plane
out=$cache/$versions

if [ "$found" = yes ] && fit_on_path; then
    # They may lie in different directories: links bring them together.
    links=$cache/path
    mkdir -p "$links"
    for name in $wanted; do
        link "$(command -v "$name")" "$links/$name"
    done
    echo "$links"
    exit 0
fi

if has_all "$out"; then
    echo "$out"
    exit 0
fi

# Distributions' packages are often too old for this release. Asked where go.mod is, an older go may fetch a newer one.
remedy="install Go 1.26 or newer (Debian's golang-go is older) and put it on PATH"
[ "$found" = no ] ||
    remedy="$remedy, or set KUBEBUILDER_ASSETS to a directory with the programs of $minor: $wanted"
command -v go >/dev/null || fail "Go is needed to build $what: $remedy"
(cd "$here/$module" && GOWORK=off go list -m >/dev/null 2>&1) ||
    fail "$(go version) cannot build $what: $remedy"

mkdir -p "$cache"
exec 9>"$cache/lock"
if ! flock -n 9; then
    say "another run is building; waiting for it"
    flock 9
fi
if has_all "$out"; then
    echo "$out"
    exit 0
fi

say "building $what from Go modules into $out"
say "once per version: $takes"

partial=$out.partial
rm -rf "$partial"
mkdir -p "$partial"
trap 'rm -rf "$partial"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

version=k8s.io/component-base/version
release=${kubernetes#v}
major=${release%%.*}
rest=${release#*.}
stamp="-X $version.gitVersion=$kubernetes -X $version.gitMajor=$major -X $version.gitMinor=${rest%%.*} -X $version.gitTreeState=clean"

for name in $wanted; do
    case $name in
    etcd) from=etcd package=go.etcd.io/etcd/server/v3 flags= ;;
    *) from=$module package=k8s.io/kubernetes/cmd/$name flags=$stamp ;;
    esac
    started=$(date +%s)
    # One stripped, static binary; of releases before 1.31 without clouds, whose modules are larger than all else.
    (cd "$here/$from" && GOWORK=off CGO_ENABLED=0 go build -mod=readonly -trimpath -buildvcs=false -tags providerless \
        -ldflags "-s -w $flags" -o "$partial/$name" "$package") 9>&- || fail "building $name failed"
    say "$name built in $(($(date +%s) - started)) s"
done

mv "$partial" "$out"
echo "$out"
