#!/bin/sh
# In the image of installer.yaml: installs the service on the host below /host, removes it, or waits.
#
#   on-host install|uninstall|purge|wait
#
# The host's own shell and systemctl do the work, in its root directory.
set -eu

# A directory of the host in which only root can write. On a disk: memory for files in /run would count for the container.
from=/var/lib/pod-teardown-installer
# systemctl does nothing in a chroot without these variables. systemd's own socket refuses a process of another PID namespace; D-Bus
# does not.
on_host() {
    SYSTEMD_IGNORE_CHROOT=1 SYSTEMCTL_FORCE_BUS=1 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /bin/chroot /host /bin/sh "$@"
}

case ${1:-} in
install | uninstall | purge)
    rm -rf "/host$from"
    # Also after a failure.
    trap 'rm -rf "/host$from"' EXIT
    cp -R /pod-teardown "/host$from"
    case $1 in
    install) on_host "$from/install.sh" ${PREFIX:+--prefix "$PREFIX"} ;;
    uninstall) on_host "$from/uninstall.sh" ${PREFIX:+--prefix "$PREFIX"} ;;
    purge) on_host "$from/uninstall.sh" --purge ${PREFIX:+--prefix "$PREFIX"} ;;
    esac
    ;;
wait)
    # A container that has nothing to do, and says that the step before it is done.
    trap 'exit 0' TERM
    sleep 2147483647 &
    wait
    ;;
*)
    echo "usage: on-host install|uninstall|purge|wait" >&2
    exit 64
    ;;
esac
