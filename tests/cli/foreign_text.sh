# shellcheck shell=sh
# Texts from elsewhere reach neither the terminal nor a log as more than text.
esc=$(printf '\033')
see() { "$@" 2>&1 | sed "s/$esc/ESC/g"; }

echo "# a manifest's member"
printf '{"schema": 1, "kernels": [{"template": "attention_forward", "\\u001b[2Jx": 1}]}' > keys.json
see t warm keys.json --dry-run

echo "# a manifest's template and value"
printf '{"schema": 1, "kernels": [{"template": "a\\u001b]0;b\\u0007", "values": {"c": "\\u009bd"}}]}' > names.json
see t warm names.json --dry-run

echo "# a header of NumPy's"
head="{'descr': '<f4', '${esc}[31m': False, 'shape': (1,), }"
printf '\223NUMPY\001\000\066\000%-53s\n' "$head" > key.npy
see t run --mask full:1 --q key.npy --backend cpu --dtype fp32

echo "# a path with a second line"
path=$(printf 'a\nevent=forged\033[2J')
mkdir "$path" && chmod 755 "$path"
printf 'no store' > "$path/kernels.ffadb" && chmod 644 "$path/kernels.ffadb"
see "$FFA" compile attention_forward --arch sm_90a --store "$path" --nvrtc "$SLOW_NVRTC" --json | grep forged
see "$FFA" run --mask full:1 --q "$path/no.npy" --backend cpu || true

echo "# a store's rows"
t compile attention_forward --arch sm_90a --store s.ffadb --nvrtc "$SLOW_NVRTC" > /dev/null
LC_ALL=C sed "s/nvrtc 13/nv${esc}tc 13/g; s/sm_90a/${esc}m_90a/g" s.ffadb > f.ffadb && chmod 600 f.ffadb
see "$FFA" cache ls --store f.ffadb | cut -c 34-62
key=$("$FFA" cache ls --store f.ffadb | tail -n 1 | cut -c 1-32)
see "$FFA" cache show "$key" --store f.ffadb | grep -a '^template\|^toolchain\|arch=' | cut -c 1-28
see "$FFA" cache show "$key" --store f.ffadb --json | grep -c 'ESC' || true
see "$FFA" cache verify --store f.ffadb | grep -a '^bad:' | cut -c 38-53

echo "# paths in reports"
mkdir "$path.new" && chmod 755 "$path.new"
see "$FFA" doctor --store "$path" | grep -a '^store\|^event'
printf '{"schema": 1, "arch": ["sm_90a"], "kernels": [{"template": "attention_forward", "values": {"head_dim": 64}}]}' > set.json
see "$FFA" warm set.json --nvrtc "$SLOW_NVRTC" --store "$path.new/k.ffadb" | grep -a '^store\|^event'
printf '{"seqlen_q": 8, "seqlen_k": 8, "kv_heads": [[[0, 8, 0, 8, "causal"]]]}' > "$path.json"
see "$FFA" plan --ranks 2 --mask "@$path.json" | grep -a '^mask\|^event' || true
