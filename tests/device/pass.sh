#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: pass.sh BUILD OUT [JOBS]
# The full pass on a GPU: all parts of the device tests at level 1, JOBS at a time (default 4; most of
# their time the oracle runs, on the CPU), and the parts `quick` at level 0 under compute-sanitizer.
# OUT receives a log of each part. A pass that was cut off goes on when it is run again with its OUT:
# parts that passed with the same templates are not run again. If none failed, OUT also receives
# last_gpu_pass.json, with which to replace the one beside this file; it names the parts that were
# skipped, as those are that need more GPUs.
set -u
build=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
jobs=${3:-4}
limit=900 # seconds a part
here=$(cd "$(dirname "$0")" && pwd)
code=$(sh "$here/code_digest.sh" "$here/../../templates") || exit 2
digest=$("$build/ffa" doctor --json | sed -n 's/^ *"templates_digest": "\(.*\)",$/\1/p')
if [ -z "$digest" ]; then
    echo "$build/ffa does not say which templates it has"
    exit 2
fi

# shares PASS PART COUNT: print COUNT shares of a part, each to be run by a process of its own. The
# longest parts come first below. All processes use one store, so each kernel is compiled once.
shares() {
    pass=$1 part=$2 count=$3
    share=0
    while [ "$share" -lt "$count" ]; do
        echo "$pass.$part:$share/$count 1"
        share=$((share + 1))
    done
}
# The parts under compute-sanitizer come first: each is one process, takes long and hardly uses the CPU, so
# that at the end all cores would wait for it.
{
    echo "backward.quick 0 memcheck"
    echo "forward.quick 0 memcheck"
    echo "backward.quick 0 synccheck"
    echo "forward.quick 0 synccheck"
    echo "replay.quick 0 memcheck"
    echo "arrivals.quick 0 memcheck"
    echo "rows.copy 0 memcheck"
    echo "rows.reduce 0 memcheck"
    shares backward bf16 6
    shares backward fp16 6
    shares backward dims 6
    shares backward quick 4
    shares backward ordered 3
    shares backward pairs 6
    shares backward isolated 3
    shares forward dims 6
    shares forward bf16 6
    shares forward fp16 6
    shares forward quick 3
    shares forward chosen 1
    shares forward calls 1
    shares backward calls 1
    shares backward whole 1
    shares backward features 2
    shares backward unions 2
    shares backward stages 2
    shares forward unions 2
    shares replay quick 2
    shares replay caller 1
    shares replay uploads 1
    shares kernels refused 1
    shares arrivals quick 1
    shares arrivals dims 1
    shares passes quick 1
    shares passes exchange 1
    shares passes relay 1
    shares exchange rows 1
    shares exchange groups 1
    shares exchange relay 1
    shares rows copy 1
    shares rows reduce 1
    shares totals ranks 1
} > "$out/parts"

# run_part PASS.PART[:SHARE] LEVEL [TOOL]
# shellcheck disable=SC2016
run_part='
    build=$1 out=$2 limit=$3 pass=${4%%.*} part=${4#*.} level=$5 tool=${6:-} share=0/1
    case $part in *:*) share=${part#*:} part=${part%:*} ;; esac
    name=$pass.$part${tool:+.$tool}
    [ "$share" = 0/1 ] || name=$name.${share%/*}
    log=$out/$name
    [ "$(cat "$log.rc" 2> /dev/null)" != 0 ] || exit 0
    begin=$(date +%s)
    CK_RUN_CASE=$part FFA_TEST_PART=$share FFA_TEST_LEVEL=$level \
        FFA_TEST_STORE=$out/kernels.ffadb timeout "$limit" \
        ${tool:+compute-sanitizer --tool "$tool" --error-exitcode 9} \
        "$build/tests/test_device_$pass" > "$log" 2>&1
    rc=$?
    echo "$rc" > "$log.rc"
    says="[0-9]+%"
    [ "$rc" != 77 ] || says=skipped
    printf "%-28s rc %-3s %4d s  %s\n" "$name" "$rc" $(($(date +%s) - begin)) \
        "$(grep -E "^$says:" "$log" | tail -n 1)"
'
if [ "$(cat "$out/digest" 2> /dev/null)" != "$digest" ]; then
    rm -f "$out"/*.rc
    echo "$digest" > "$out/digest"
fi
xargs -P "$jobs" -L 1 sh -c "$run_part" part "$build" "$out" "$limit" < "$out/parts"

bad=0 passed=0 skipped=
for rc in "$out"/*.rc; do
    case $(cat "$rc") in
    0) passed=$((passed + 1)) ;;
    77) skipped="$skipped, not $(basename "$rc" .rc)" ;;
    *) bad=$((bad + 1)) ;;
    esac
done
if [ "$bad" != 0 ]; then
    echo "$bad parts failed"
    exit 1
fi
if [ "$passed" = 0 ]; then
    echo "skipped: no part ran"
    exit 77
fi
device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1 | sed 's/, /, driver /')
cat > "$out/last_gpu_pass.json" << END
{
  "templates_digest": "$digest",
  "code_digest": "$code",
  "device": "$device",
  "date": "$(date -u +%F)",
  "what": "tests/device/pass.sh: all parts at level 1; quick at level 0 under compute-sanitizer memcheck and synccheck$skipped"
}
END
cat "$out/last_gpu_pass.json"
