#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: install.sh BUILD SOURCE GENERATOR
# Installs BUILD to a scratch prefix, moves it, and builds and runs the consumer project against it
# by both ways. Installs it once more, and uninstalls it: only files of others are left.
set -eu
build=$1
source=$2
generator=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/first" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
mv "$work/first" "$work/moved"
pc=$(dirname "$(find "$work/moved" -name ffa.pc)")
lib=$(dirname "$pc")

for way in OFF ON; do
    {
        PKG_CONFIG_PATH=$pc cmake -S "$source/tests/abi/consumer" -B "$work/$way" -G "$generator" \
            -DCMAKE_PREFIX_PATH="$work/moved" -DUSE_PKG_CONFIG=$way &&
            cmake --build "$work/$way"
    } > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    said=$(LD_LIBRARY_PATH=$lib "$work/$way/consumer")
    echo "pkg-config $way: $said"
    [ "$said" = "$(cat "$source/examples/attention.expected")" ]
done
LD_LIBRARY_PATH='' "$work/moved/bin/ffa" --version
sh "$source/tests/abi/run_paths.sh" "$work/moved/bin/ffa" "$lib"/libffa.so

# The command's man pages and its completion, which the build has it print.
for file in man/man1/ffa.1 man/man1/ffa-mask-show.1 bash-completion/completions/ffa \
    zsh/site-functions/_ffa fish/vendor_completions.d/ffa.fish; do
    [ -s "$work/moved/share/$file" ] || { echo "share/$file is not installed"; exit 1; }
done

# A cost table in its place is found by the moved library.
tables=$work/moved/share/libffa/cost-tables
[ -d "$tables" ] || { echo "share/libffa/cost-tables is not installed"; exit 1; }
LD_LIBRARY_PATH='' "$work/moved/bin/ffa" tune table --cost-tables none --store none |
    sed 's/"NVIDIA H200"/"X 1"/' > "$tables/x1.json"
LD_LIBRARY_PATH='' "$work/moved/bin/ffa" tune table --device 'X 1' --store none | cmp - "$tables/x1.json"

# Licence and examples.
for file in LICENSE CHANGELOG.md examples/attention.c examples/CMakeLists.txt; do
    [ -s "$work/moved/share/doc/libffa/$file" ] || { echo "share/doc/libffa/$file is not installed"; exit 1; }
done

cmake --install "$build" --prefix "$work/second" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
echo other > "$work/second/include/ffa/of_another.h"
cmake -DMANIFEST="$build/install_manifest.txt" -P "$source/cmake/FfaUninstall.cmake"
left=$(cd "$work/second" && find . ! -type d)
[ "$left" = ./include/ffa/of_another.h ] || { echo "uninstalling left: $left"; exit 1; }
for folder in share/doc/libffa share/libffa; do
    [ ! -d "$work/second/$folder" ] || { echo "uninstalling left $folder"; exit 1; }
done
