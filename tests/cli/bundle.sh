# shellcheck shell=sh
needs_nvrtc

# Two stores, one kernel in both.
one() { "$FFA" compile attention_forward head_dim=64 "tile_n=$2" --arch sm_90a --store "$1" > /dev/null; }
one a.ffadb 64
sleep 1 # inspect lists the newest first, by the second
one a.ffadb 128
one b.ffadb 128
cp b.ffadb no64.ffadb
mkdir -m 755 out merged
t bundle export --store a.ffadb --to out
bundle=$(ls out/*.ffadb)
t bundle inspect "$bundle"
t bundle inspect "$bundle" --manifest
[ "ffa-$("$FFA" bundle inspect "$bundle" --manifest | sha256sum | head -c 32).ffadb" = "$(basename "$bundle")" ]
t bundle verify "$bundle" --json
t bundle diff a.ffadb "$bundle"
t bundle diff "$bundle" b.ffadb
t bundle import "$bundle" --store b.ffadb
t bundle import "$bundle" b.ffadb --store c.ffadb --json
t bundle import "$bundle" missing.ffadb b.ffadb --store f.ffadb
t bundle import missing.ffadb "$bundle" --store f.ffadb
t bundle import "$bundle" --store c.ffadb --arch sm90a
t bundle import "$bundle" b.ffadb --store c.ffadb --template nonsense --json

# Parts merged are the whole, byte for byte in the blobs: the name is the digest.
t bundle merge merged "$bundle" b.ffadb
[ "$(basename merged/*.ffadb)" = "$(basename "$bundle")" ]
ls -A merged

# In use, read-only, with nothing that compiles.
FFA_JIT=never t compile attention_forward head_dim=64 tile_n=64 --arch sm_90a --store none --bundle "$bundle"
ln -s "$bundle" link.ffadb
FFA_JIT=never FFA_BUNDLES=:link.ffadb t compile attention_forward head_dim=64 tile_n=128 --arch sm_90a \
    --store none --nvrtc no/such/file
FFA_JIT=never t compile attention_forward head_dim=128 --arch sm_90a --store none --bundle "$bundle"
FFA_BUNDLES="$bundle" "$FFA" doctor --store none | grep -A 1 ^bundle
"$FFA" doctor --bundle missing.ffadb --bundle a.ffadb --store none 2> /dev/null > doctor.txt || echo "exit $?"
grep -A 1 ^bundle doctor.txt
t compile attention_forward head_dim=64 tile_n=64 --arch sm_90a --store a.ffadb --bundle missing.ffadb

# Damage: a byte of a cubin, a name that is another's.
cp "$bundle" bad.ffadb && chmod 600 bad.ffadb
at=$(grep -abo 'attention_forward' bad.ffadb | tail -n 1 | cut -d : -f 1)
printf 'X' | dd of=bad.ffadb bs=1 seek="$at" conv=notrunc 2> /dev/null
cp "$bundle" ffa-00000000000000000000000000000000.ffadb
t bundle verify bad.ffadb
t bundle verify ffa-00000000000000000000000000000000.ffadb
t bundle verify "$bundle" --digest 0000000000000000000000000000000000000000000000000000000000000000

# What is imported is what was exported: the manifest and the digest are checked.
digest=$("$FFA" bundle inspect "$bundle" --json | sed -n 's/.*"digest": "\([0-9a-f]*\)".*/\1/p' | head -n 1)
t bundle import "$bundle" --store d.ffadb --digest 0000000000000000000000000000000000000000000000000000000000000000
t bundle import "$bundle" --store d.ffadb --digest "$digest"
t bundle import "$bundle" "$bundle" --store d.ffadb --digest "$digest"
LC_ALL=C sed 's/# ffa manifest 1:/# ffa manifest 2:/' "$bundle" > edited.ffadb && chmod 600 edited.ffadb
t bundle import edited.ffadb --store e.ffadb
t cache ls --store e.ffadb
