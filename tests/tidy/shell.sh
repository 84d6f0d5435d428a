#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: shell.sh SOURCE
# The shell scripts under version control pass shellcheck. Skipped without it, and in a tree that
# git does not know.
set -eu
cd "$1"
skip() { echo "skipped: $1" && exit 77; }

git ls-files --error-unmatch tests/tidy/shell.sh > /dev/null 2>&1 || skip "git does not list the files of this tree"
command -v shellcheck > /dev/null 2>&1 || skip "no shellcheck"
git ls-files -z '*.sh' demo test .ci/run | xargs -0 shellcheck -x
