# shellcheck shell=sh
# Which version of libffa a bundle is for: it says so, and what this one makes of another one's.
mkdir -m 755 ours theirs other
trivial=$SOURCE/tests/data/templates/trivial
digest=$("$FFA" --version | sed -n 's/^templates *\([0-9a-f]*\).*/\1/p')
# shellcheck disable=SC2086 # words
{
    "$FFA" warm --spec head_dim=64,dtype=bf16,backward --nvrtc "$SLOW_NVRTC" --store ours.ffadb > made
    "$FFA" compile attention_forward --nvrtc "$SLOW_NVRTC" --templates "$trivial" --store theirs.ffadb > made
}
echo "# of this version"
"$FFA" bundle export --store ours.ffadb --to ours | grep -E '^(library|templates|fitting)' | sed "s/$digest/DIGEST/"
bundle=$(ls ours/*)
t bundle verify "$bundle"

echo "# of templates that are no version's, beside those of this one"
"$FFA" bundle merge theirs ours.ffadb theirs.ffadb | grep -E '^(library|templates|fitting)'
t bundle verify theirs/*.ffadb --json
"$FFA" doctor --store none --bundle theirs/*.ffadb | grep -A 2 ^bundle
t bundle import theirs/*.ffadb --store into.ffadb

echo "# of another version: what an edited file says of itself"
LC_ALL=C sed -e "s/$digest/00000000000000000000000000000000/" -e 's/text.device_limits.h=/text.device_limits.x=/' \
    "$bundle" > other/b.ffadb && chmod 600 other/b.ffadb
t bundle inspect other/b.ffadb --json > inspected
grep -E '"(library|templates|fitting)"' inspected
t bundle verify other/b.ffadb
t bundle verify other/b.ffadb --any-version
FFA_JIT=never t warm --spec head_dim=64,dtype=bf16 --store none --bundle other/b.ffadb --jobs 1
t bundle import other/b.ffadb --store new.ffadb
ls new.ffadb 2> ls.txt || echo "no store was made"
t bundle import other/b.ffadb --store new.ffadb --any-version
