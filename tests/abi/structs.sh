#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: structs.sh SOURCE [--accept]
# Every struct of the public headers can grow, or is a plain value. One that can grow starts with
# struct_size. Unless it is only told to callbacks, it has a macro FFA_..._INIT that sets it, the function
# ffa_..._init on the line after the macro, and its row in src/init.def; --accept writes the last two.
# Plain values never change; they are listed here, with what they are.
set -eu
export LC_ALL=C
cd "$1"

plain="
ffa_error           in the caller's memory, written by every function
ffa_slice           four bounds and a type
ffa_slice_list      a pointer and a count
ffa_mask_shape      the arguments of a mask
ffa_mask_box        two ranges, told to a callback
ffa_mask_offset     two numbers
ffa_block_list      arguments: arrays and their strides, within ffa_block_mask
ffa_documents       an argument of builders
ffa_window          an argument of builders
ffa_block_size      an argument of builders
ffa_dltensor        DLPack's own layout
ffa_tensor          a pointer and what is known of it, within args
ffa_spec_row        borrowed from the library, never the caller's
ffa_group_lists     arguments: arrays and counts
ffa_group_format    an argument
ffa_group_source    a pointer and its strides
ffa_group_target    a pointer and its strides
ffa_topology        arguments: ranks and nodes
ffa_dispatch_mask   a mask and its weight, an element of the caller's arrays
ffa_parallel_model  within options
ffa_rows            arguments
ffa_row_format      an argument
ffa_link_rate       two numbers, an element of the caller's arrays
ffa_kernel_rate     numbers, an element of the caller's arrays
ffa_sim_pass        within ffa_sim_result
"
# Told to callbacks: the library sets struct_size, and no caller starts one.
told="
ffa_cache_entry
ffa_cache_failure
ffa_cache_miss
ffa_explain_candidate
ffa_precompile_event
ffa_tune_event
"
plain_names=$(echo "$plain" | awk 'NF { print $1 }')
bad=0
say() { echo "$1"; bad=1; }

# Write the declaration below each macro that has none, and all rows.
accept() {
    for header in include/ffa/*.h; do
        awk '
            pending && $0 !~ "^FFA_API void " type "_init\\(" {
                word = type; sub(/.*_/, "", word)
                print "FFA_API void " type "_init(" type " *" word ", size_t bytes);"
            }
            { pending = 0; print }
            /^#define FFA_[A-Z0-9_]+_INIT( |$)/ { type = tolower($2); sub(/_init$/, "", type); inside = 1 }
            inside && !/\\$/ { inside = 0; pending = 1 }
        ' "$header" > "$header.new"
        if cmp -s "$header" "$header.new"; then rm "$header.new"; else mv "$header.new" "$header"; fi
    done
    sed '/^X(/d' src/init.def > src/init.def.new
    sed -n 's/^#define \(FFA_[A-Z0-9_]*\)_INIT\( .*\)*$/\1/p' include/ffa/*.h | sort |
        while IFS= read -r name; do
            echo "X($(echo "$name" | tr '[:upper:]' '[:lower:]'), ${name}_INIT)"
        done >> src/init.def.new
    mv src/init.def.new src/init.def
}
if [ "${2:-}" = --accept ]; then accept; fi

# NAME FIRST-FIELD of each struct: the first line of its body that is no comment.
structs=$(awk '
    /^typedef struct [a-z0-9_]+ \{/ { name = $3; comment = 0; next }
    name && /^ *\/\*/ { comment = !/\*\// ; next }
    name && comment { if (/\*\//) comment = 0; next }
    name { field = $2; sub(/;.*/, "", field); print name, ($1 == "uint32_t" ? field : "-"); name = "" }
' include/ffa/*.h)
[ -n "$structs" ] || say "no struct was found"

for name in $(echo "$structs" | awk '$2 != "struct_size" { print $1 }'); do
    echo "$plain_names" | grep -qx "$name" ||
        say "$name has no struct_size: it cannot grow; add one, or a line to $0 that says why it need not"
done
for name in $told; do
    echo "$structs" | grep -qx "$name struct_size" || say "$0 has a line for $name, which there is not with struct_size"
done
for name in $plain_names; do
    echo "$structs" | grep -q "^$name " || say "$0 has a line for $name, which there is not"
    if echo "$structs" | grep -qx "$name struct_size"; then say "$0 has a line for $name, which has struct_size"; fi
done

# The macros, and what follows each.
macros=$(awk '
    /^#define FFA_[A-Z0-9_]+_INIT( |$)/ { macro = $2; line = FNR }
    macro && !/\\$/ {
        getline after
        sized = text ~ /\.struct_size = \(uint32_t\)sizeof\(/ || $0 ~ /\.struct_size/
        print macro, (sized ? "sized" : "-"), (after ~ /^FFA_API void / ? after : "-")
        macro = ""; text = ""; next
    }
    macro { text = text $0 }
' include/ffa/*.h)
for name in $(echo "$structs" | awk '$2 == "struct_size" { print $1 }'); do
    if echo "$told" | grep -qx "$name"; then continue; fi
    macro=$(echo "${name}_INIT" | tr '[:lower:]' '[:upper:]')
    row=$(echo "$macros" | grep "^$macro " || true)
    case $row in
        "") say "$name has no macro $macro" ;;
        *" - FFA_API"*) say "$macro does not set struct_size" ;;
        *"FFA_API void ${name}_init($name *"*", size_t bytes);") ;;
        *) say "$macro is not followed by FFA_API void ${name}_init($name *..., size_t bytes);" ;;
    esac
    grep -qx "X($name, $macro)" src/init.def || say "src/init.def has no X($name, $macro)"
done
# A macro with an argument is of a plain value.
with_argument=$(grep -hoE '^#define FFA_[A-Z0-9_]+_INIT\(' include/ffa/*.h | sed 's/.* \(.*\)(/\1/')
for macro in $with_argument; do
    function=$(echo "$macro" | tr '[:upper:]' '[:lower:]')
    grep -qE "^FFA_API void $function\(" include/ffa/*.h || say "$macro has no function $function"
    grep -q "void $function(" src/init.c || say "$function is not in src/init.c"
done
rows=$(sed -n 's/^X(\([a-z0-9_]*\), .*/\1/p' src/init.def)
for name in $rows; do
    echo "$structs" | grep -qx "$name struct_size" || say "src/init.def has $name, which there is not with struct_size"
done
if [ $bad != 0 ]; then echo "declarations and rows are written by: $0 SOURCE --accept"; fi
exit $bad
