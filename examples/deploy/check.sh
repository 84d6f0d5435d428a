#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: check.sh FOLDER PRESET [PUBLIC-KEY]
# Whether FOLDER has what bundle.sh made, for the `ffa` of this machine: the signature is that of the
# manifest, the kernels are those of the manifest and for this version, and none of the preset's is
# missing. Needs no compiler.
set -eu
folder=$1
preset=$2
key=${3:-}
bundle=$folder/$(readlink "$folder/kernels.ffadb")
[ -z "$key" ] || openssl dgst -sha256 -verify "$key" -signature "$bundle.sig" "$bundle.manifest"
ffa bundle verify "$bundle" --digest "$(sha256sum < "$bundle.manifest" | cut -c 1-64)"
FFA_JIT=never ffa warm --preset "$preset" --arch sm_90a --store none --bundle "$bundle"
