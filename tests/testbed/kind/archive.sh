#!/bin/sh
# Writes a container image as `docker save` does: one layer, made of a directory.
#
#   archive.sh NAME DIRECTORY FILE [ENTRYPOINT]...
set -eu

name=$1 directory=$2 file=$3
shift 3

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

tar -C "$directory" --numeric-owner --owner 0 --group 0 --sort name --mtime @0 -cf "$scratch/layer.tar" .
layer=$(sha256sum "$scratch/layer.tar" | cut -d ' ' -f 1)

entrypoint=
for word; do
    entrypoint="$entrypoint${entrypoint:+, }\"$word\""
done
architecture=$(dpkg --print-architecture)
cat >"$scratch/config.json" <<CONFIG
{"architecture": "$architecture", "os": "linux",
 "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Entrypoint": [$entrypoint]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$layer"]}}
CONFIG
cat >"$scratch/manifest.json" <<MANIFEST
[{"Config": "config.json", "RepoTags": ["$name"], "Layers": ["layer.tar"]}]
MANIFEST

tar -C "$scratch" -cf "$file" manifest.json config.json layer.tar
