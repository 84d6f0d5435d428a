#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: names.sh SOURCE
# What documents name exists: the files they link to, the headings they link to, and what stands in
# backquotes, if it is a path of this tree or a name of its code. Each finding is one line.
#
# A path is a word with a slash or a suffix of a source file. A name is 'name()', or a word that
# starts with ffa_, FFA_ or struct. A fenced block is code, not prose, and is left out.
set -eu
cd "$1"
export LC_ALL=C
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: > "$work/found"

documents=$(find . -name '*.md' ! -path './build*' ! -path './.git/*' | sed 's|^\./||' | sort)

# Prose only: line numbers are kept.
prose() { awk '/^ *```/ { inside = !inside; print ""; next } { print inside ? "" : $0 }' "$1"; }

# Anchors of a document's headings, as Markdown viewers make them.
anchors() {
    prose "$1" | sed -n 's/^##* *//p' | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9_\n-'
}

# All words of the code that a document may name.
find include src templates tests bench examples cmake -type f \
    \( -name '*.[ch]' -o -name '*.cu' -o -name '*.def' -o -name '*.py' -o -name '*.sh' -o -name '*.txt' \
    -o -name '*.cmake' \) -exec grep -ohE '[A-Za-z_][A-Za-z0-9_]*' {} + | sort -u > "$work/words"
grep -rhoE '^#include <[^>]+>' include src templates tests | sed 's/.*<//; s/>//' | sort -u > "$work/foreign"
find . -type f ! -path './build*' ! -path './.git/*' | sed 's|.*/||' | sort -u > "$work/files"

check_links() { # DOCUMENT
    prose "$1" | grep -noE '\]\([^)]+\)' | while IFS=: read -r line link; do
        target=${link#"]("}
        target=${target%")"}
        case $target in http://* | https://* | mailto:*) continue ;; esac
        file=${target%%#*}
        anchor=
        case $target in *"#"*) anchor=${target#*"#"} ;; esac
        path=$1
        if [ -n "$file" ]; then path=$(dirname "$1")/$file; fi
        if [ ! -e "$path" ]; then
            echo "$1:$line: links to $target, which is not there"
        elif [ -n "$anchor" ] && ! anchors "$path" | grep -qxF -e "$anchor"; then
            echo "$1:$line: links to $target, a heading that is not there"
        fi
    done
}

# Whether a path is in this tree: from the top, from the document's folder, or a public header.
is_there() { # DOCUMENT PATH
    grep -qxF -e "$2" "$work/foreign" || [ -e "$2" ] || [ -e "$(dirname "$1")/$2" ] || [ -e "include/$2" ] || [ -e "src/$2" ] ||
        case $2 in *[/*]*) false ;; *) grep -qxF -e "$2" "$work/files" ;; esac
}

is_word() { grep -qxF -e "$1" "$work/words"; }

# What is wrong with TEXT, the words between two backquotes; nothing, if it is not a name.
fault_of() { # DOCUMENT TEXT
    case $2 in
        *NAME* | .* | build/) ;;
        *"()")
            name=${2%"()"}
            case $name in *[!A-Za-z0-9_]*) return ;; esac
            is_word "$name" || echo "there is no function $name"
            ;;
        "struct "*[!A-Za-z0-9_]* | *[!A-Za-z0-9_./*-]*) ;;
        "struct "*) is_word "${2#struct }" || echo "there is no $2" ;;
        ffa_*'*' | FFA_*'*') grep -q "^${2%%\**}" "$work/words" || echo "nothing is named $2" ;;
        build/* | build-*/*)
            name=${2##*/}
            case $name in *-* | ffa) return ;; esac
            is_word "$name" || [ ! "${name%.*}" = "$name" ] || echo "nothing builds $2"
            ;;
        *.[ch] | *.cu | *.def | *.py | *.cmake | *.md)
            is_there "$1" "$2" || echo "there is no file $2"
            ;;
        ffa_*.* | FFA_*.*)
            is_word "${2%%.*}" && is_word "${2##*.}" || echo "there is no $2 in the code"
            ;;
        ffa_* | FFA_*) is_word "$2" || echo "there is no $2 in the code" ;;
        src/* | include/* | templates/* | tests/* | bench/* | docs/* | examples/* | cache/* | cmake/*)
            is_there "$1" "${2%%\**}" || echo "there is no $2"
            ;;
    esac
}

# shellcheck disable=SC2016 # backquotes are what is looked for
check_names() { # DOCUMENT
    prose "$1" | grep -noE '`[^`]+`' | while IFS=: read -r line text; do
        text=${text#?}
        fault=$(fault_of "$1" "${text%?}")
        if [ -n "$fault" ]; then echo "$1:$line: $fault"; fi
    done
}

for document in $documents; do
    check_links "$document" >> "$work/found"
    case $document in CHANGELOG.md) continue ;; esac # names what is gone
    check_names "$document" >> "$work/found"
done
if [ -s "$work/found" ]; then
    cat "$work/found"
    echo "$(wc -l < "$work/found") findings"
    exit 1
fi
