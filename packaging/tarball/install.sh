#!/bin/sh
# Installs pod-teardown as a systemd service, or upgrades it. Run it as root, in the directory of the unpacked tarball.
#
#   install.sh [--prefix DIRECTORY]     default /usr/local; use /opt/pod-teardown where /usr is read-only
#
# Running it again changes nothing. An upgrade restarts the service, and keeps /etc/default/pod-teardown and
# /var/lib/pod-teardown. uninstall.sh, which is also in DIRECTORY/share/pod-teardown, removes all of it.
set -eu
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
umask 022

say() { echo "install: $*"; }
fail() { echo "install: $*" >&2; exit 1; }

prefix=/usr/local
while [ $# -gt 0 ]; do
    case $1 in
    --prefix)
        [ $# -gt 1 ] || { echo "install: --prefix needs a directory" >&2; exit 64; }
        prefix=$2
        shift 2
        ;;
    *)
        echo "usage: install.sh [--prefix DIRECTORY]" >&2
        exit 64
        ;;
    esac
done
case $prefix in
/*) ;;
*) echo "install: the prefix must be an absolute path: $prefix" >&2; exit 64 ;;
esac
prefix=${prefix%/}

from=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
unit=/etc/systemd/system/pod-teardown.service
settings=/etc/default/pod-teardown
# What is installed, one path a line; directories end with a slash.
list=$prefix/share/pod-teardown/files
# Exists while an installation is not complete: `first` or `upgrade`. The next run continues.
pending=$prefix/share/pod-teardown/pending

[ "$(id -u)" = 0 ] || fail "run this as root"
for packaged in /usr/lib/systemd/system/pod-teardown.service /lib/systemd/system/pod-teardown.service; do
    [ ! -e "$packaged" ] || fail "a package has installed pod-teardown here ($packaged): upgrade or remove that package"
done
if [ -e "$unit" ] && [ ! -e "$list" ] && [ ! -e "$pending" ]; then
    fail "$unit exists, and was not installed with --prefix $prefix: run uninstall.sh of the other prefix first"
fi
command -v systemctl >/dev/null || fail "this system has no systemd"

scratch=$(mktemp -d)
new=$prefix/bin/pod-teardown.checked
trap 'rm -rf "$scratch" "$new"' EXIT
changed=
: >"$scratch/directories"

# make_directory PATH: remembers which ones are new.
make_directory() {
    directory=$1
    while [ ! -d "$directory" ]; do
        echo "$directory/" >>"$scratch/directories"
        directory=${directory%/*}
    done
    mkdir -p "$1"
}

# A program for another processor, or for a newer C library, does not run. The tarball may lie where none may run.
make_directory "$prefix/bin"
cp "$from/files/usr/bin/pod-teardown" "$new"
chmod 755 "$new"
version=$("$new" --version) || fail "the program does not run on this machine"

# place FILE PATH MODE: replaces PATH in one step, if it differs.
place() {
    echo "$2" >>"$scratch/files"
    if cmp -s "$1" "$2"; then
        return
    fi
    if [ ! -e "$pending" ]; then
        if [ -n "$first" ]; then echo first; else echo upgrade; fi >"$pending.new"
        replace "$pending"
    fi
    make_directory "${2%/*}"
    cp "$1" "$2.new"
    chmod "$3" "$2.new"
    replace "$2"
    changed=yes
}

# replace PATH: puts PATH.new there in one step. A power cut leaves the old content or the new one, and no empty file.
replace() {
    sync "$1.new"
    mv -f "$1.new" "$1"
    sync "${1%/*}"
}

first=yes
if [ -e "$pending" ]; then
    [ "$(cat "$pending")" = first ] || first=
    changed=yes
elif [ -e "$list" ]; then
    first=
fi
make_directory "$prefix/share/pod-teardown"
for file in $(cd "$from/files" && find usr -type f); do
    case $file in
    usr/lib/systemd/system/*)
        # The manager finds units of administrators there, whatever the prefix is.
        sed "s|/usr/bin/pod-teardown|$prefix/bin/pod-teardown|; s|/usr/share/doc|$prefix/share/doc|" "$from/files/$file" \
            >"$scratch/unit"
        place "$scratch/unit" "$unit" 644
        ;;
    usr/bin/*) place "$from/files/$file" "$prefix/${file#usr/}" 755 ;;
    *) place "$from/files/$file" "$prefix/${file#usr/}" 644 ;;
    esac
done
place "$from/uninstall.sh" "$prefix/share/pod-teardown/uninstall.sh" 755
ln -sf pod-teardown "$prefix/bin/kubectl-teardown"
printf '%s\n' "$prefix/bin/kubectl-teardown" "$pending" >>"$scratch/files"
# Files that only the earlier version had.
if [ -e "$list" ]; then
    while read -r file; do
        case $file in
        */) echo "$file" >>"$scratch/directories" ;;
        *) grep -qxF "$file" "$scratch/files" || rm -f "$file" ;;
        esac
    done <"$list"
fi
sort -u "$scratch/directories" "$scratch/files" >"$list.new"
replace "$list"
missing=
if [ ! -e "$settings" ]; then
    missing=$first
elif [ -f "$settings" ] && [ ! -s "$settings" ]; then
    # A power cut has emptied it.
    missing=yes
fi
if [ -n "$missing" ]; then
    mkdir -p "${settings%/*}"
    # It may hold a token for the OpenTelemetry collector.
    (umask 027 && cp "$from/files/usr/share/pod-teardown/pod-teardown.default" "$settings.new")
    replace "$settings"
fi

running=
[ ! -d /run/systemd/system ] || running=yes
if [ -n "$changed" ] && [ -n "$running" ]; then
    systemctl daemon-reload
fi
if [ -n "$first" ]; then
    systemctl --quiet enable pod-teardown.service
    [ -z "$running" ] || systemctl start pod-teardown.service
    say "$version is installed below $prefix, and its service is enabled"
elif [ -n "$changed" ]; then
    # One that an administrator has stopped stays so.
    [ -z "$running" ] || systemctl try-restart pod-teardown.service
    say "$version is installed below $prefix: upgraded"
else
    say "$version is installed below $prefix: nothing has changed"
fi
rm -f "$pending"
