#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: packages.sh BUILD SOURCE GENERATOR
# Packs BUILD with CPack, unpacks the Debian packages into one tree and the archive into another, and in
# both builds the installed examples and runs one. The packages have no run path, depend on each other in
# this version, and lintian finds nothing, where there is one. The sources are git's HEAD.
set -eu
export LC_ALL=C
build=$1
source=$2
generator=$3
for tool in dpkg dpkg-deb dpkg-shlibdeps readelf gzip; do
    command -v $tool > /dev/null 2>&1 || { echo "skipped: no $tool"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
quietly() { "$@" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }; }

quietly cpack --config "$build/CPackConfig.cmake" -B "$work/packed"
cd "$work"
mkdir debian archive
for deb in packed/*.deb; do dpkg -x "$deb" debian; done
tar -xzf packed/libffa-*.tar.gz -C archive --strip-components=1
ls packed

# try_tree PREFIX EXAMPLES: all examples in C build against the tree, and one says what it should; the command runs.
try_tree() {
    pc=$(find "$1" -name ffa.pc)
    lib=$(dirname "$(dirname "$pc")")
    quietly cmake -S "$2" -B "$1.build" -G "$generator" -DCMAKE_PREFIX_PATH="$1"
    quietly cmake --build "$1.build"
    for file in "$2"/*.c; do
        [ -x "$1.build/$(basename "$file" .c)" ] || { echo "$file is not built"; exit 1; }
    done
    "$1.build/attention" | diff "$2/attention.expected" -
    # shellcheck disable=SC2046 # words
    cc -o by-pkg-config "$2/attention.c" $(PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --cflags --libs ffa)
    LD_LIBRARY_PATH=$lib ./by-pkg-config | diff "$2/attention.expected" -
    [ -s "$1/share/bash-completion/completions/ffa" ] && [ -s "$1/share/fish/vendor_completions.d/ffa.fish" ]
}
try_tree "$work/debian/usr" "$work/debian/usr/share/doc/libffa-dev/examples"
try_tree "$work/archive" "$work/archive/share/doc/libffa/examples"
sh "$source/tests/abi/run_paths.sh" archive/bin/ffa "$(find archive -name libffa.so)" || exit 1

# The archive's command finds its library wherever it was unpacked; that of the packages is in the
# loader's own folder, and has no run path at all.
archive/bin/ffa --version | head -n 1
LD_LIBRARY_PATH=$(dirname "$(find "$work/debian" -name libffa.so)") debian/usr/bin/ffa mask show full:4
readelf -d debian/usr/bin/ffa "$(find debian -name 'libffa.so.*.*.*')" | grep -E 'R(UN)?PATH' && exit 1
readelf -d archive/bin/ffa | grep -E 'RUNPATH.*\[/|RUNPATH.*:/' && exit 1
gzip -t debian/usr/share/man/man1/ffa.1.gz debian/usr/share/doc/libffa-tools/changelog.gz
for file in share/man/man1/ffa.1 share/doc/libffa/LICENSE share/zsh/site-functions/_ffa; do
    [ -s "archive/$file" ] || { echo "the archive has no $file"; exit 1; }
done
for file in share/zsh/vendor-completions/_ffa share/doc/libffa-dev/copyright; do
    [ -s "debian/usr/$file" ] || { echo "no package has $file"; exit 1; }
done

# Python finds the library where the loader does.
(cd "$work" && unset LIBFFA_LIBRARY && LD_LIBRARY_PATH=$(dirname "$(find "$work/debian" -name libffa.so)") \
    PYTHONPATH=$work/debian/usr/lib/python3/dist-packages PYTHONDONTWRITEBYTECODE=1 \
    python3 -c 'import libffa; print(libffa.Mask.causal(4).area, libffa.__version__)') | grep -q '^10 ' ||
    { echo "python3-libffa does not work"; exit 1; }

version=$(dpkg-deb -f packed/libffa-dev_*.deb Version)
library=$(dpkg-deb -f packed/libffa[0-9]*.deb Package)
for package in libffa-dev libffa-tools python3-libffa; do
    needs=$(dpkg-deb -f packed/${package}_*.deb Depends)
    case $needs in
        "$library (= $version)"*) ;;
        *) echo "$package depends on '$needs', not on $library (= $version)" && exit 1 ;;
    esac
done
dpkg-deb -f packed/"$library"_*.deb Depends | grep -q 'libsqlite3-0' || { echo "no dependency on SQLite"; exit 1; }

if command -v lintian > /dev/null 2>&1; then
    # A build for another prefix than /usr has no folder of the architecture in its path.
    suppressed=
    [ -d debian/usr/lib/pkgconfig ] && suppressed='--suppress-tags pkg-config-unavailable-for-cross-compilation'
    # shellcheck disable=SC2086 # words
    quietly lintian --allow-root --profile debian --fail-on error,warning $suppressed packed/*.deb
    cat log
else
    echo "lintian is not there"
fi

if [ -e "$source/.git" ] && git -C "$source" rev-parse --verify -q HEAD > /dev/null 2>&1; then
    quietly cpack --config "$build/CPackSourceConfig.cmake" -B "$work/sources"
    tar -xzf sources/libffa-*.tar.gz -C "$work"
    commit=$(git -C "$source" rev-parse HEAD)
    [ "$(cat "$work"/libffa-*/cmake/commit.txt)" = "$commit" ] || { echo "the sources do not name $commit"; exit 1; }
    [ -x "$(echo "$work"/libffa-*/demo)" ]
fi
