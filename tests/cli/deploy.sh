# shellcheck shell=sh
# The scripts of examples/deploy, as the image and the CI job run them, with a compiler that takes no time.
command -v openssl > /dev/null || skip "no openssl"
mkdir bin
ln -s "$FFA" bin/ffa
PATH=$WORK/bin:$PATH
export PATH
openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem 2> /dev/null
openssl pkey -in key.pem -pubout -out key.pub
said() { sed -e 's/[0-9a-f]\{64\}/SHA256/g' -e '/^seconds/d' said; }

sh "$SOURCE/examples/deploy/bundle.sh" gqa-64 kernels key.pem --nvrtc "$SLOW_NVRTC" --jobs 2 > said && echo "made"
for file in kernels/*; do echo "$file" | sed 's/[0-9a-f]\{32\}/DIGEST/'; done
sh "$SOURCE/examples/deploy/check.sh" kernels gqa-64 key.pub > said && echo "right"
said
echo "# a manifest that was not signed"
sed -i 's/nvrtc 13.0/nvrtc 13.1/' kernels/*.manifest
sh "$SOURCE/examples/deploy/check.sh" kernels gqa-64 key.pub > said 2>&1 || echo "refused"
echo "# a bundle that is not the manifest's"
sh "$SOURCE/examples/deploy/check.sh" kernels gqa-64 > said 2>&1 || echo "refused"
said
echo "# a preset that the bundle does not cover"
sh "$SOURCE/examples/deploy/bundle.sh" gqa-64 kernels key.pem --nvrtc "$SLOW_NVRTC" --jobs 2 > said
sh "$SOURCE/examples/deploy/check.sh" kernels dim-80 key.pub > said 2>&1 || echo "refused with $?"
