#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: bundle.sh PRESET FOLDER [KEY [WARM-OPTIONS...]]
# Compiles a preset with the `ffa` and the NVRTC of this machine, which needs no GPU, and writes it to
# FOLDER: the bundle, its manifest, the manifest's signature by the private KEY (PEM; '' for none), and a
# link kernels.ffadb to the bundle. FOLDER is only changed where all of it succeeds.
set -eu
preset=$1
folder=$2
key=${3:-}
shift 2
[ $# -eq 0 ] || shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder" "$work/out"

ffa warm --preset "$preset" --arch sm_90a --store "$work/build.ffadb" "$@"
ffa bundle export --store "$work/build.ffadb" --to "$work/out" > "$work/exported"
bundle=$(basename "$work"/out/ffa-*.ffadb)
ffa bundle inspect "$work/out/$bundle" --manifest > "$work/out/$bundle.manifest"
ffa bundle verify "$work/out/$bundle" --digest "$(sha256sum < "$work/out/$bundle.manifest" | cut -c 1-64)"
[ -z "$key" ] || openssl dgst -sha256 -sign "$key" -out "$work/out/$bundle.sig" "$work/out/$bundle.manifest"
mv "$work"/out/* "$folder"
ln -sfn "$bundle" "$folder/kernels.ffadb"
