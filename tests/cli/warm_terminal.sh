# shellcheck shell=sh
# The bar is for terminals that can draw; in a pipe, and where TERM is dumb, there is none.
command -v script > /dev/null || skip "no script(1) to make a terminal"
set=$SOURCE/tests/data/kernels.json
escape=$(printf '\033')
on_terminal() {
    rm -rf bar
    script -qec "$FFA warm $set --jobs 1 --nvrtc $SLOW_NVRTC --store bar --keep-going" /dev/null < /dev/null > screen
    echo "bars: $(grep -c "${escape}\[K\[#*-*\] ./4  hit 0  built ." screen | sed 's/^[1-9].*/some/')"
    echo "colours: $(grep -c "${escape}\[31m" screen | sed 's/^[1-9].*/some/')"
}
export FAKE_NVRTC_MS=100
echo "# a terminal"
TERM=xterm on_terminal
echo "# red where something failed"
FAKE_NVRTC_FAIL=1 TERM=xterm on_terminal || true
echo "# without colour"
FAKE_NVRTC_FAIL=1 TERM=xterm NO_COLOR=1 on_terminal || true
echo "# a dumb one"
TERM=dumb on_terminal
