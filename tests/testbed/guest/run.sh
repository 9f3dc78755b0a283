#!/usr/bin/env bash
# Boots the guest with what lies in a directory mounted at /payload, shows what it says, and ends with the exit code of
# /payload/inside.sh in there.
#
#   run.sh GUEST PAYLOAD
#
# GUEST is what build.sh prints; nothing in it is changed. A guest that dies, hangs or says nothing of an exit code is a
# failure; its last output is what was shown. $GUEST_LIMIT (default 45m) bounds all of it.
set -euo pipefail

fail() { echo "guest: $*" >&2; exit 1; }

[ $# = 2 ] || fail "usage: run.sh GUEST PAYLOAD"
guest=$1 payload=$2
limit=${GUEST_LIMIT:-45m}

# On a disk: both grow to some hundred MiB.
scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/guest.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

room=$(($(du -sm "$payload" | cut -f 1) * 11 / 10 + 32))
truncate -s "${room}M" "$scratch/payload.img"
mkfs.ext4 -q -O ^has_journal -m 0 -d "$payload" "$scratch/payload.img"

# Most test machines are virtual themselves, and then the processor is emulated, which is ten times slower.
accelerator=tcg,thread=multi
if grep -qwE 'vmx|svm' /proc/cpuinfo && [ -w /dev/kvm ]; then
    accelerator=kvm
fi

# The second serial line takes the exit code alone: output on the first cannot forge it.
code=0
TMPDIR=$scratch timeout --foreground --kill-after=10 "$limit" nice qemu-system-x86_64 \
    -machine q35 -accel "$accelerator" -cpu max -smp 2 -m 3G \
    -nodefaults -display none -no-reboot -net none \
    -kernel "$guest/vmlinuz" -initrd "$guest/initrd" \
    -append "root=/dev/vda rw console=ttyS0 quiet panic=-1 systemd.show_status=error" \
    -drive "file=$guest/root.img,format=raw,if=virtio,snapshot=on,cache=unsafe" \
    -drive "file=$scratch/payload.img,format=raw,if=virtio,readonly=on" \
    -device virtio-rng-pci \
    -serial stdio -serial "file:$scratch/exit-code" </dev/null || code=$?

case $code in
0) ;;
124 | 137) fail "no end after $limit; the last output is above" ;;
*) fail "qemu ended with exit code $code" ;;
esac
# A terminal ends lines with CR LF.
code=$(tr -d '\r\n' <"$scratch/exit-code")
case $code in
'' | *[!0-9]*) fail "the guest ended without an exit code${code:+, but with: $code}; the last output is above" ;;
esac
exit "$code"
