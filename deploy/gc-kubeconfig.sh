#!/bin/sh
# Makes the file for --gc-kubeconfig:
#
#   gc-kubeconfig.sh FILE [DURATION]
#
# Asks the cluster that kubectl is set up for, where gc-rbac.yaml has been applied, for a token that is good for DURATION
# (720h if none is given; a cluster may allow less), and writes it to FILE, which only its owner can read. Run it again
# before the token ends, which `pod-teardown check` and `pod-teardown gc status` tell: FILE is replaced in one step, and the
# agent reads it again by itself.
set -eu

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: gc-kubeconfig.sh FILE [DURATION]" >&2
    exit 64
fi
file=$1
duration=${2:-720h}

# Of the cluster that kubectl is set up for; nothing if it does not say.
cluster() { kubectl config view --raw --minify --flatten --output "jsonpath={.clusters[0].cluster.$1}"; }
server=$(cluster server)
authority=$(cluster certificate-authority-data)
name=$(cluster tls-server-name)
token=$(kubectl --namespace kube-system create token pod-teardown-gc --duration "$duration")

umask 077
new=$(mktemp "$file.XXXXXX")
trap 'rm -f "$new"' EXIT
{
    echo 'apiVersion: v1'
    echo 'kind: Config'
    echo 'current-context: collector'
    echo 'contexts: [{name: collector, context: {cluster: cluster, user: collector}}]'
    echo 'clusters:'
    echo '  - name: cluster'
    echo '    cluster:'
    echo "      server: \"$server\""
    [ -z "$authority" ] || echo "      certificate-authority-data: \"$authority\""
    [ -z "$name" ] || echo "      tls-server-name: \"$name\""
    echo 'users:'
    echo '  - name: collector'
    echo '    user:'
    echo "      token: \"$token\""
} >"$new"
mv "$new" "$file"
