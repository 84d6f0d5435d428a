# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
#
# . tests/emulator/use.sh BUILD: what this shell starts from here on runs on the emulator.
emulator=$(cd "$1/tests/emulator" && pwd)
FFA_CACHE_DIR=$emulator/cache # not where kernels of a real device are
LD_PRELOAD=$emulator/libcudart.so.13:$emulator/libnvrtc.so.13:$emulator/libnccl.so.2
export FFA_CACHE_DIR LD_PRELOAD
