# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
#
# What ./demo, ./test and .ci/run share: find the tools and libraries they need, and install only those
# that are missing. Sourced from the top folder. setup_cuda sets cuda_flags, the arguments that tell
# CMake where CUDA is.
#
# FFA_SETUP_CUDA=auto     use a toolkit if one is found, else NVIDIA's Python wheels (the default)
#               =toolkit  use a toolkit, or stop
#               =wheels   use the wheels even if there is a toolkit

say() { printf '%s\n' "$*" >&2; }

# cannot MESSAGE: stop with exit status 3, which means that this machine lacks something.
cannot() {
    say "$0: $1"
    exit 3
}

apt_ready=
apt_install() {
    command -v apt-get > /dev/null 2>&1 ||
        cannot "missing: $*. There is no apt-get here: install the equivalents of these Debian packages."
    as_root=
    if [ "$(id -u)" != 0 ]; then
        command -v sudo > /dev/null 2>&1 ||
            cannot "missing: $*. Not root and no sudo: ask for 'apt-get install $*'."
        as_root=sudo
    fi
    say "installing: $*"
    if [ -z "$apt_ready" ]; then
        $as_root apt-get update -qq >&2 || say "apt-get update failed; trying with the present package lists"
        apt_ready=yes
    fi
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2 ||
        cannot "'apt-get install $*' failed: install these packages and run this again."
}

# lacks_tool COMMAND / lacks_library PKG-CONFIG-NAME
lacks_tool() { ! command -v "$1" > /dev/null 2>&1; }
lacks_library() { lacks_tool pkg-config || ! pkg-config --exists "$1"; }

# setup_packages [test]: install a C compiler, CMake and the libraries; 'test' adds libcheck, and a
# C++ compiler for the emulator.
setup_packages() {
    missing=
    if lacks_tool cc; then missing="$missing gcc libc6-dev"; fi
    if lacks_tool cmake; then missing="$missing cmake"; fi
    if lacks_tool ninja; then missing="$missing ninja-build"; fi
    if lacks_tool pkg-config; then missing="$missing pkg-config"; fi
    if lacks_library libxxhash; then missing="$missing libxxhash-dev"; fi
    if lacks_library sqlite3; then missing="$missing libsqlite3-dev"; fi
    if lacks_library libmd; then missing="$missing libmd-dev"; fi
    if lacks_library jansson; then missing="$missing libjansson-dev"; fi
    if [ "${1:-}" = test ]; then
        if lacks_tool c++; then missing="$missing g++"; fi
        if lacks_library check; then missing="$missing check"; fi
        if lacks_library libsubunit; then missing="$missing libsubunit-dev"; fi
    fi
    # shellcheck disable=SC2086 # a list of words
    if [ -n "$missing" ]; then apt_install $missing; fi
}

# toolkit_version FOLDER: print the version of the CUDA toolkit there as major*100+minor, or nothing.
toolkit_version() {
    [ -f "$1/include/cuda.h" ] && [ -f "$1/include/nvrtc.h" ] &&
        [ -f "$1/include/cuda_runtime_api.h" ] || return 0
    sed -n 's/^#define CUDA_VERSION \([0-9]*\)[0-9]$/\1/p' "$1/include/cuda.h" | head -n 1
}

# Set `toolkit` to the first toolkit that is new enough.
find_toolkit() {
    old=
    nvcc=$(command -v nvcc || true)
    for root in "${CUDA_HOME:-}" "${CUDA_PATH:-}" "${nvcc%/bin/nvcc}" /usr/local/cuda \
        /usr/local/cuda-* /opt/cuda; do
        if [ -z "$root" ] || [ ! -d "$root" ]; then continue; fi
        version=$(toolkit_version "$root")
        if [ -z "$version" ]; then continue; fi
        if [ "$version" -ge 1208 ]; then
            toolkit=$root
            return 0
        fi
        old="$root (CUDA $((version / 100)).$((version % 100)))"
    done
    if [ -n "$old" ]; then say "the toolkit in $old is older than 12.8"; fi
    return 1
}

# Fetch the CUDA runtime, NVRTC and NCCL as wheels into a folder with include/ and lib/. CUDA 13.0,
# because the published figures were measured with it, and every driver for CUDA 13 runs it.
fetch_wheels() {
    wheels=$PWD/build/cuda-wheels
    root=$wheels/nvidia/cu13
    if [ ! -f "$wheels/complete" ]; then
        python=$(command -v python3 || true)
        if [ -z "$python" ] || ! "$python" -m pip --version > /dev/null 2>&1; then
            apt_install python3 python3-pip
            # Debian's interpreter, for which apt has just installed pip.
            python=/usr/bin/python3
        fi
        say "fetching NVIDIA's wheels (CUDA runtime, NVRTC, NCCL) into $wheels"
        rm -rf "$wheels"
        mkdir -p "$wheels"
        export PIP_ROOT_USER_ACTION=ignore
        "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$wheels" \
            'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-nvrtc==13.0.*' 'nvidia-cuda-crt==13.0.*' \
            >&2 || return 1
        # Only ranks that do not reach each other's memory need NCCL, so do not stop without it.
        if "$python" -m pip install --quiet --disable-pip-version-check --no-deps \
            --target "$wheels/nccl" nvidia-nccl-cu13 >&2; then
            ln -sf "$wheels"/nccl/nvidia/nccl/lib/libnccl.so.2 "$root/lib/"
            ln -sf "$wheels"/nccl/nvidia/nccl/include/nccl.h "$root/include/"
        else
            say "NCCL's wheel could not be fetched; continuing without NCCL"
        fi
        : > "$wheels/complete"
    fi
    cuda_flags=-DFFA_CUDA_ROOT=$root
}

# Find or fetch CUDA as FFA_SETUP_CUDA says, and set cuda_flags.
setup_cuda() {
    wanted=${FFA_SETUP_CUDA:-auto}
    case $wanted in
        auto | toolkit | wheels) ;;
        *) cannot "FFA_SETUP_CUDA is '$wanted', not auto, toolkit or wheels" ;;
    esac
    if [ "$wanted" != wheels ] && find_toolkit; then
        say "CUDA toolkit: $toolkit"
        cuda_flags="-DFFA_CUDA_ROOT= -DCUDAToolkit_ROOT=$toolkit"
        return 0
    fi
    if [ "$wanted" != toolkit ] && fetch_wheels; then
        say "CUDA wheels: $root"
        return 0
    fi
    cannot "no CUDA Toolkit >= 12.8 was found and NVIDIA's wheels could not be fetched.
  Toolkit: https://developer.nvidia.com/cuda-downloads (then set CUDA_HOME if it is in no usual place)
  Wheels:  pip install --target DIR nvidia-cuda-runtime nvidia-cuda-nvrtc nvidia-cuda-crt (from https://pypi.org), which needs
           a network; then build by hand with -DFFA_CUDA_ROOT=DIR/nvidia/cu13"
}

# fetch_python OPTION...: what the Python package's tests need, into $venv. The build of PyTorch for CPUs is a tenth of the
# size, but is no use to a GPU.
fetch_python() {
    pip="$venv/bin/python -m pip install --quiet --disable-pip-version-check --retries 1"
    {
        { [ ! -e /dev/nvidiactl ] && $pip "$@" --index-url https://download.pytorch.org/whl/cpu torch 2> /dev/null; } ||
            $pip "$@" torch >&2
    } && $pip "$@" numpy pytest transformers scikit-build-core >&2
}

# setup_python: a virtual environment with what the Python package's tests need, in build/python: the versions that they
# were last run with, or others where these cannot be had. Without it they are skipped, so that nothing here fails.
# FFA_SETUP_TORCH=none: fetch nothing.
setup_python() {
    venv=$PWD/build/python
    if [ -f "$venv/complete" ] || [ "${FFA_SETUP_TORCH:-auto}" = none ]; then return 0; fi
    say "fetching PyTorch for the tests of the Python package into $venv"
    rm -rf "$venv"
    mkdir -p build
    if python3 -m venv "$venv" 2> /dev/null &&
        { fetch_python --constraint cmake/python-versions.txt || fetch_python; }; then
        : > "$venv/complete"
    else
        rm -rf "$venv"
        say "it could not be fetched: the tests of the Python package are skipped"
    fi
}

# How many compilers run at the same time.
jobs=$(getconf _NPROCESSORS_ONLN 2> /dev/null || echo 2)

# build_preset PRESET [cmake arguments]: configure and build, quietly unless it fails.
build_preset() {
    preset=$1
    shift
    log=$(mktemp)
    # shellcheck disable=SC2086 # a list of words
    if ! { cmake --preset "$preset" $cuda_flags "$@" && cmake --build --preset "$preset" -j "$jobs"; } \
        > "$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        say "building preset '$preset' failed"
        return 1
    fi
    # The presets make compiler warnings errors; warnings of CMake itself are only printed.
    grep -A4 '^CMake Warning' "$log" >&2 || true
    rm -f "$log"
}
