#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: tables.sh FFA SOURCE
# The cost tables that are installed are read, are tuned ones of their device models, bear their digests as names, and say no
# templates, whose next change would silence them.
set -eu
ffa=$1
cd "$2/cache/cost-tables"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for table in *.json; do
    FFA_CACHE_DIR=$work "$ffa" doctor --cost-tables "$table" --json > "$work/said" || true
    grep -q "\"path\": \".*$table\"" "$work/said" || { echo "$table is not looked at:"; cat "$work/said"; exit 1; }
    sed -n "/\"cost_tables\"/,/\"path\": \".*$table\"/p" "$work/said" > "$work/its"
    grep -q '"source": "tuned"' "$work/its" || { echo "$table is passed over:"; cat "$work/said"; exit 1; }
    digest=$(sed -n 's/^ *"digest": "\(.*\)",$/\1/p' "$work/its" | head -n 1)
    [ "$table" = "costs-$digest.json" ] || { echo "$table has the digest $digest"; exit 1; }
    grep -q '"templates": ""' "$table" || { echo "$table is of one text of the templates"; exit 1; }
done
