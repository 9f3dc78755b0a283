#!/bin/sh
# Removes what install.sh has installed. Run it as root.
#
#   uninstall.sh [--prefix DIRECTORY] [--purge]
#
# Running it again changes nothing. The settings in /etc/default/pod-teardown and the state in /var/lib/pod-teardown stay: a
# later agent continues from there. --purge removes them too.
set -eu
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

usage() {
    echo "usage: uninstall.sh [--prefix DIRECTORY] [--purge]" >&2
    exit 64
}

prefix=/usr/local purge=
while [ $# -gt 0 ]; do
    case $1 in
    --prefix)
        [ $# -gt 1 ] || usage
        prefix=${2%/}
        shift 2
        ;;
    --purge)
        purge=yes
        shift
        ;;
    *) usage ;;
    esac
done
list=$prefix/share/pod-teardown/files
[ "$(id -u)" = 0 ] || { echo "uninstall: run this as root" >&2; exit 1; }

if [ -e "$list" ]; then
    if [ -d /run/systemd/system ]; then
        systemctl --quiet stop pod-teardown.service
    fi
    systemctl --quiet disable pod-teardown.service
    # Files before their directories. Other programs may have put something into these.
    installed=$(LC_ALL=C sort -r "$list")
    rm -f "$list"
    for path in $installed; do
        case $path in
        */) rmdir "$path" 2>/dev/null || true ;;
        *) rm -f "$path" ;;
        esac
    done
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
    fi
    echo "uninstall: pod-teardown is removed from $prefix"
else
    echo "uninstall: nothing is installed below $prefix"
fi
if [ -n "$purge" ]; then
    rm -rf /var/lib/pod-teardown
    rm -f /etc/default/pod-teardown
    echo "uninstall: its settings and its state are removed"
fi
