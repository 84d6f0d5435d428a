# shellcheck shell=sh
t bundle
t bundle export
t bundle export --store none
t bundle import
t bundle import missing.ffadb
t bundle merge out
t bundle merge no/such/folder missing.ffadb
t bundle diff a
t bundle diff missing.ffadb missing.ffadb
t bundle inspect missing.ffadb --json
echo 'not a bundle' > foreign.ffadb
chmod 600 foreign.ffadb
t bundle verify foreign.ffadb
t bundle verify foreign.ffadb --digest 12
t bundle inspect foreign.ffadb
t cache ls --store foreign.ffadb
t bundle inspect kernels.ffadb
t run --mask full:8 --bundle
t run --mask full:8 --bundle ''
FFA_BUNDLES=$(seq -s : 65) t run --mask full:8 --backend cpu
t bundle export --store store/kernels.ffadb --to .
t bundle inspect store/kernels.ffadb
t bundle inspect store/kernels.ffadb --manifest
t bundle export --help
