#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: version.sh BUILD SOURCE LIBRARY PROGRAM
# One version everywhere: the header's, the library's file and soname, pkg-config's, CMake's, the
# command's; and the policy of docs/building.md: before 1.0 the minor version is in the soname, and
# CMake takes no other minor version for compatible. The commit is the source's.
set -eu
export LC_ALL=C
build=$1
source=$2
library=$3
program=$4
bad=0
same() { # WHAT GOT WANTED
    if [ "$2" != "$3" ]; then echo "$1 is '$2', not '$3'"; bad=1; fi
}
number() { sed -n "s/^#define FFA_VERSION_$1 \([0-9]*\)\$/\1/p" "$source/include/ffa/status.h"; }

major=$(number MAJOR)
minor=$(number MINOR)
version=$major.$minor.$(number PATCH)
if [ "$major" = 0 ]; then compatible=0.$minor; else compatible=$major; fi

same "what 'ffa --version' says" "$("$program" --version | head -n 1)" "ffa $version"
same "the library's file" "$(basename "$(readlink -f "$library")")" "libffa.so.$version"
if command -v readelf > /dev/null 2>&1; then
    same "the soname" "$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')" "libffa.so.$compatible"
fi
same "pkg-config's version" "$(sed -n 's/^Version: //p' "$build/ffa.pc")" "$version"

# What find_package(ffa V) would say to each version V.
asked() {
    cat > "$work/ask.cmake" << END
set(PACKAGE_FIND_VERSION $1.$2.$3)
set(PACKAGE_FIND_VERSION_MAJOR $1)
set(PACKAGE_FIND_VERSION_MINOR $2)
set(PACKAGE_FIND_VERSION_PATCH $3)
set(CMAKE_SIZEOF_VOID_P 8)
include($build/ffaConfigVersion.cmake)
message("\${PACKAGE_VERSION} \${PACKAGE_VERSION_COMPATIBLE}")
END
    cmake -P "$work/ask.cmake" 2>&1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
same "CMake's answer to this version" "$(asked "$major" "$minor" 0)" "$version TRUE"
same "CMake's answer to a later minor version" "$(asked "$major" $((minor + 1)) 0)" "$version FALSE"
same "CMake's answer to a later major version" "$(asked $((major + 1)) 0 0)" "$version FALSE"
if [ "$major" = 0 ] && [ "$minor" -gt 0 ]; then
    same "CMake's answer to an earlier minor version" "$(asked 0 $((minor - 1)) 0)" "$version FALSE"
fi

# The commit, by the script that the build runs: of a repository, of a tarball, of neither.
commit_of() {
    cmake -DSOURCE="$1" -DOUT="$work/commit.h" -P "$source/cmake/FfaCommit.cmake" > /dev/null
    sed -n 's/^#define FFA_COMMIT "\(.*\)"$/\1/p' "$work/commit.h"
}
same "the command's commit" "$("$program" --version | sed -n 's/^commit *//p')" "$(sed -n 's/.*"\(.*\)"/\1/p' "$build/generated/commit.h")"
mkdir -p "$work/plain/cmake" "$work/tarball/cmake"
# shellcheck disable=SC2016 # what git archive replaces
echo '$Format:%H$' > "$work/plain/cmake/commit.txt"
echo 0123456789abcdef0123456789abcdef01234567 > "$work/tarball/cmake/commit.txt"
same "the commit of a copy" "$(commit_of "$work/plain")" unknown
same "the commit of a tarball" "$(commit_of "$work/tarball")" 0123456789ab
if command -v git > /dev/null 2>&1; then
    repository=$work/repository
    mkdir "$repository"
    cp -r "$work/plain/cmake" "$repository/cmake"
    git -C "$repository" init -q
    git -C "$repository" add -A
    git -C "$repository" -c user.name=x -c user.email=x@x -c commit.gpgsign=false commit -q -m first
    head=$(git -C "$repository" rev-parse --short=12 HEAD)
    same "the commit of a repository" "$(commit_of "$repository")" "$head"
    echo more >> "$repository/cmake/commit.txt"
    same "the commit of a changed repository" "$(commit_of "$repository")" "$head-dirty"
    mkdir -p "$repository/inside"
    cp -r "$work/plain/cmake" "$repository/inside/cmake"
    same "the commit of a copy inside another repository" "$(commit_of "$repository/inside")" unknown
    cp "$source/.gitattributes" "$repository/"
    cp "$source/cmake/commit.txt" "$repository/cmake/"
    git -C "$repository" add -A
    git -C "$repository" -c user.name=x -c user.email=x@x -c commit.gpgsign=false commit -q -m second
    mkdir "$work/unpacked"
    git -C "$repository" archive HEAD | tar -x -C "$work/unpacked"
    same "the commit of git's tarball" "$(commit_of "$work/unpacked")" \
        "$(git -C "$repository" rev-parse HEAD | cut -c 1-12)"
fi
exit $bad
