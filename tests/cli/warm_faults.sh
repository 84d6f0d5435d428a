# shellcheck shell=sh
# What goes wrong in a worker is one failed kernel; each fault is really there.
needs_nvrtc
set=$SOURCE/tests/data/kernels.json
bad=$SOURCE/tests/data/templates
schema() { "$SCHEMA_CHECK" "$SOURCE/tests/schema/warm.json" < "$1" && echo "as the schema says"; }

echo "# a template that does not compile ends the session, or with --keep-going does not"
t warm "$set" --jobs 1 --templates "$bad/broken"
"$FFA" warm "$set" --jobs 1 --templates "$bad/broken" --keep-going --json > broken.json 2> broken.err || echo "exit $?"
schema broken.json
grep -c 'failed: .*undeclared_thing' broken.err

echo "# a compile that never ends"
t warm "$set" --jobs 2 --templates "$bad/endless" --timeout 0.5 --shard 0/4

echo "# one that wants ever more memory"
"$FFA" warm "$set" --jobs 1 --templates "$bad/endless" --mem-per-job 64M --json > memory.json 2> memory.err || echo "exit $?"
schema memory.json
# AddressSanitizer ends a process that is out of memory before it can say so.
how=memory
if grep -q __asan_init "$FFA"; then how='(memory|crash)'; fi
grep -cE "\"reason\": \"$how\"" memory.json
grep -cE 'failed: .*(out of memory: a worker may take 64 MiB|its worker ended)' memory.err

# A compiler that is held at a gate, to be interrupted.
export FAKE_NVRTC_LOG="$WORK/compiles" FAKE_NVRTC_GATE="$WORK/gate"
first() { # the process of the Nth compile
    for _ in $(seq 3000); do
        line=$(sed -n "$1p" compiles 2> /dev/null || true)
        if [ -n "$line" ]; then break; fi
        sleep 0.02
    done
    echo "$line"
}
said() { # without the line of progress that a slow machine sees every ten seconds
    sed -e '/[0-9] of [0-9]*: hit [0-9]*, built/d' "$1"
}

echo "# a worker killed from outside: a fresh one takes over"
"$FFA" warm "$set" --shard 0/2 --jobs 1 --nvrtc "$SLOW_NVRTC" --store killed > killed.out 2> killed.err &
kill -KILL "$(first 1)"
touch gate
wait $! || echo "exit $?"
said killed.err
sed -n 's/^\(hit\|built\|failed\) /&/p' killed.out | grep -v sm_90a
t warm "$set" --shard 0/2 --jobs 1 --nvrtc "$SLOW_NVRTC" --store killed --resume

echo "# a worker that crashes"
rm -f compiles gate
"$FFA" warm "$set" --shard 0/4 --jobs 1 --nvrtc "$SLOW_NVRTC" --store crashed --json > crashed.json 2> crashed.err &
kill -ABRT "$(first 1)"
wait $! || echo "exit $?"
schema crashed.json
said crashed.err

echo "# interrupted: what was built is kept"
rm -f compiles
# A shell's '&' ignores SIGINT, and what is ignored stays so.
FAKE_NVRTC_FREE=1 env --default-signal=INT "$FFA" warm "$set" --shard 0/2 --jobs 1 --nvrtc "$SLOW_NVRTC" --store interrupted --json > interrupted.json 2> interrupted.err &
second=$(first 2)
kill -INT $!
wait $! || echo "exit $?"
kill -0 "$second" 2> /dev/null || echo "its worker is gone"
schema interrupted.json
said interrupted.err
grep -E '"(end|hit|built|failed|not_tried)"' interrupted.json
"$FFA" cache ls --store interrupted --json | grep -c '"key"'

echo "# a signal to the whole group, as 'timeout' sends it: no worker dies of it, no kernel fails"
rm -f compiles
FAKE_NVRTC_FREE=1 setsid "$FFA" warm "$set" --shard 0/2 --jobs 1 --nvrtc "$SLOW_NVRTC" --store group --json > group.json 2> group.err &
first 2 > /dev/null
kill -s TERM -- "-$!"
wait $! || echo "exit $?"
said group.err
grep -E '"(end|hit|built|failed|not_tried)"' group.json

echo "# the session's own time-out"
t warm "$set" --jobs 1 --nvrtc "$SLOW_NVRTC" --store late --deadline 0.2 --jsonl

echo "# the session killed: its worker goes, too"
rm -f compiles
"$FFA" warm "$set" --jobs 1 --nvrtc "$SLOW_NVRTC" --store orphan > orphan.out 2> orphan.err &
worker=$(first 1)
kill -KILL $!
wait $! 2> /dev/null || echo "exit $?"
for _ in $(seq 3000); do
    if ! kill -0 "$worker" 2> /dev/null; then break; fi
    sleep 0.02
done
kill -0 "$worker" 2> /dev/null || echo "gone"

echo "# two sessions at once build each kernel once"
rm -f compiles
touch gate
FAKE_NVRTC_MS=100 "$FFA" warm "$set" --jobs 2 --nvrtc "$SLOW_NVRTC" --store both > one.out 2> one.err &
FAKE_NVRTC_MS=100 "$FFA" warm "$set" --jobs 2 --nvrtc "$SLOW_NVRTC" --store both > two.out 2> two.err
wait $!
wc -l < compiles
said one.err
said two.err
