#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2044 # no file name here has blanks
#
# usage: tidy.sh SOURCE
# Rules of the source that no compiler knows: who includes whom, one home for each foreign header,
# what the library never does. Each finding is one line: file:line: what is wrong.
set -eu
cd "$1"
export LC_ALL=C
found=$(mktemp)
trap 'rm -f "$found" "$found.rooms"' EXIT

# Comments do not call anything: cut them (and strings), keeping line numbers.
code() {
    awk '{
        line = $0
        gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
        out = ""
        while (line != "") {
            if (inside) {
                end = index(line, "*/")
                if (!end) { line = ""; break }
                inside = 0; line = substr(line, end + 2)
            } else {
                start = index(line, "/*")
                if (!start) { out = out line; break }
                out = out substr(line, 1, start - 1); inside = 1; line = substr(line, start + 2)
            }
        }
        print FILENAME ":" FNR ": " out
    }' "$1"
}

# ---- edges between rooms: who may include what besides itself ----

# In reading order, from the ground up: a room includes only rooms above it in this table.
allowed_for() {
    case $1 in
        base) echo "" ;;
        tensor) echo "base" ;;
        mask) echo "base" ;;
        tile) echo "base mask" ;;
        jit) echo "base" ;;
        cache) echo "base jit" ;;
        gpu) echo "base" ;;
        cpu) echo "base tile" ;;
        choose) echo "base mask tile jit" ;;
        service) echo "base jit cache gpu choose" ;;
        attention) echo "base tensor mask tile jit gpu cpu choose service" ;;
        parallel/dispatch) echo "base tensor mask" ;;
        parallel/plan) echo "base mask tile parallel/dispatch" ;;
        parallel/run) echo "base tensor tile cpu parallel/plan" ;;
        parallel/device) echo "base tensor mask tile gpu service attention parallel/plan parallel/run" ;;
        simulate) echo "base mask parallel/dispatch parallel/plan" ;;
        oracle) echo "" ;;
        tune) echo "base mask tile jit cache gpu choose service attention oracle" ;;
        cli) echo "oracle" ;;
        *) echo "unknown" ;;
    esac
}
for folder in $(find src -type d | sort); do
    room=${folder#src/}
    case $folder in src | src/parallel) continue ;; esac
    allowed=$(allowed_for "$room")
    if [ "$allowed" = unknown ]; then
        echo "$folder: a room that tests/tidy/tidy.sh does not know: say what it may include" >> "$found"
        continue
    fi
    grep -HnE '^#include "[a-z_]+/' "$folder"/*.c "$folder"/*.h 2> /dev/null |
        while IFS= read -r hit; do
            file=${hit%%:*}
            header=$(echo "$hit" | sed 's/.*#include "\([^"]*\)".*/\1/')
            target=$(dirname "$header")
            case " $room $allowed " in *" $target "*) continue ;; esac
            # All inline, no symbol of the library: what the command shares with it.
            case "$room $header" in "cli base/half.h" | "cli base/printable.h" | "cli base/available.h") continue ;; esac
            echo "$file: room $room must not include \"$header\"" >> "$found"
        done
done

# Public headers of rooms above: base has only what has no room, and the service no attention.
public_edges() { # FOLDER ALLOWED-HEADERS
    grep -HnE '^#include <ffa/' "$1"/*.[ch] | grep -vE "<ffa/($2)\\.h>" |
        awk -v what="${1#src/} includes $2 only" '{ print $0 "   <- " what }' >> "$found" || true
}
public_edges src/base 'status|log'
public_edges src/tensor 'status|log|context|kernel|tensor|dlpack'
public_edges src/mask 'status|log|mask'
public_edges src/jit 'status|log|context|kernel'
public_edges src/cache 'status|log|context|kernel|cache|bundle'
public_edges src/gpu 'status|log|context'
public_edges src/service 'status|log|context|kernel|cache|bundle|device|choice'

# One file name, one file (but for a public header and the room behind it).
find src templates -name '*.[ch]' -o -name '*.cu' | sed 's|.*/||' | sort | uniq -d |
    sed 's/.*/&: two files have this name/' >> "$found"

# The map of rooms in docs/architecture.md is this table.
awk '/^\| room \| is \| includes \|$/ { on = 1; next } on && !/^\|/ { exit } on && !/^\|-/' \
    docs/architecture.md > "$found.rooms"
for folder in $(find src -type d | sort); do
    room=${folder#src/}
    case $folder in src | src/parallel) continue ;; esac
    row=$(grep -F "| \`$room\` |" "$found.rooms" || true)
    said=$(echo "$row" | sed 's/.*|  *\(.*\)|$/\1/; s/ *$//')
    if [ -z "$row" ]; then
        echo "docs/architecture.md: the map of rooms has no $room" >> "$found"
    elif [ "$said" != "$(allowed_for "$room")" ]; then
        echo "docs/architecture.md: $room includes '$said', here '$(allowed_for "$room")'" >> "$found"
    fi
done
# shellcheck disable=SC2016 # backquotes are what is looked for
sed -n 's/^| `\([^`]*\)`.*/\1/p' "$found.rooms" | while IFS= read -r room; do
    [ -d "src/$room" ] || echo "docs/architecture.md: there is no room $room" >> "$found"
done

# ---- foreign headers: one home each ----

home_of() { # HEADER-PATTERN FOLDERS...
    pattern=$1
    shift
    grep -rHnE "^#include <$pattern>" src include templates --include='*.[ch]' --include='*.cu' 2> /dev/null |
        while IFS= read -r hit; do
            for home in "$@"; do
                case $hit in "$home"/* | "$home":*) continue 2 ;; esac
            done
            echo "$hit: belongs to $* only" >> "$found"
        done
}
home_of 'nvrtc\.h' src/jit
home_of 'xxhash\.h' src/base
home_of 'sqlite3\.h' src/cache
home_of 'sha2\.h' src/cache
home_of 'nccl\.h' src/parallel/run
home_of 'cuda[a-zA-Z_]*\.h' src/gpu
# The command's JSON, and tables in the library that people read and edit.
home_of 'jansson\.h' src/cli src/choose/cost_table_json.c src/tune/tune_report.c
home_of 'check\.h' tests

# ---- what the library never does; the command may ----

for file in $(find src -name '*.[ch]' ! -path 'src/cli/*'); do
    code "$file" | grep -E '[^a-zA-Z0-9_](getenv|secure_getenv|setenv|putenv|printf|vprintf|puts|putchar|perror|exit|_exit|quick_exit|abort|system)[ ]*\(' |
        sed 's/$/   <- the library prints nothing, ends nothing, reads no environment/' >> "$found" || true
    code "$file" | grep -E '[^a-zA-Z0-9_](stdout|stderr)[^a-zA-Z0-9_]' |
        sed 's/$/   <- the library prints nothing/' >> "$found" || true
done
for file in $(find src -name '*.[ch]'); do
    code "$file" | grep -E '[^a-zA-Z0-9_](gets|sprintf|vsprintf|strcpy|strcat|strtok|atoi|atol|alloca|rand)[ ]*\(' |
        sed 's/$/   <- banned: unbounded, without errors, or with hidden state/' >> "$found" || true
done
for file in $(find src/cli -name '*.[ch]' ! -name environment.c); do
    code "$file" | grep -E '[^a-zA-Z0-9_]getenv[ ]*\(' |
        sed 's/$/   <- the environment is read in src\/cli\/environment.c only/' >> "$found" || true
done

# ---- files ----

# What is of no room sees the public headers only, and stands in the top CMakeLists.txt.
grep -HnE '^#include "' src/*.c | grep -v '"init\.def"' |
    sed 's/$/   <- what is of no room sees the public headers only/' >> "$found" || true
for file in $(find src -name '*.c'); do
    list=$(dirname "$file")/CMakeLists.txt
    if [ "$list" = src/CMakeLists.txt ]; then list=CMakeLists.txt; fi
    grep -qE "(^|[ (/])$(basename "$file")([ )]|\$)" "$list" ||
        echo "$file: in no CMakeLists.txt" >> "$found"
done
for file in $(find src include templates tests bench -name '*.[ch]' -o -path 'templates/*.cu'); do
    head -n 3 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' ||
        echo "$file:1: no SPDX line" >> "$found"
done
# The table of faults in docs/store.md names tests: they are there.
grep -E '\| (test_|tests/)' docs/store.md | sed 's/.*| \(test.*\) |$/\1/' | tr ';' '\n' | while IFS= read -r entry; do
    # shellcheck disable=SC2046 # words: "file.c case, case"
    set -- $(echo "$entry" | tr -d ,)
    file=$(find tests/unit -name "$1")
    case $1 in tests/*) file=$1 ;; esac
    if [ ! -f "$file" ]; then echo "docs/store.md: there is no $file" >> "$found"; continue; fi
    shift
    for name; do
        grep -q "^START_TEST($name)\$" "$file" ||
            echo "docs/store.md: $file has no test $name" >> "$found"
    done
done
# Spelt so that this file does not find itself.
unfinished='TO''DO|FIX''ME|XX''X|HA''CK'
grep -rHnwE "$unfinished" src include templates tests bench cmake examples ./*.md CMakeLists.txt demo test .ci \
    2> /dev/null | sed 's/$/   <- finish it or file it/' >> "$found" || true

if [ -s "$found" ]; then
    cat "$found"
    echo "$(wc -l < "$found") findings"
    exit 1
fi
