#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: shell.sh SOURCE
# The shell scripts under version control pass shellcheck. Skipped without it, and in a tree that is no
# git checkout.
set -eu
cd "$1"
skip() { echo "skipped: $1" && exit 77; }

git rev-parse --git-dir > /dev/null 2>&1 || skip "not a git checkout"
command -v shellcheck > /dev/null 2>&1 || skip "no shellcheck"
git ls-files -z '*.sh' demo test .ci/run | xargs -0 shellcheck -x
