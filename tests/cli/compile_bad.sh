# shellcheck shell=sh
t compile
t compile nonsense --arch sm_90a
t compile attention_forward head_dim=100 --arch sm_90a
t compile attention_forward head_dim=100000 --arch sm_90a
t compile attention_forward dtype=int8 --arch sm_90a
t compile attention_forward colour=1 --arch sm_90a
t compile attention_forward head_dim --arch sm_90a
t compile attention_forward --arch sm_80
t compile attention_forward --arch nonsense --json
t compile attention_forward --arch sm_90a --templates no/such/folder
t compile attention_forward --arch sm_90a --emit elf x
t compile attention_forward --arch sm_90a --nvrtc no/such/libnvrtc.so
FFA_JIT=never t compile attention_forward --arch sm_90a
FFA_JIT=sometimes t compile attention_forward --arch sm_90a
t compile attention_forward --arch sm_90a --print
t compile attention_forward head_dim=99999999999 --arch sm_90a
t compile attention_forward head_dim=-99999999999999999999999 --arch sm_90a
t compile attention_forward dtype=99999999999 --arch sm_90a
mkdir -m 755 templates && cp "$SOURCE"/tests/data/templates/trivial/* templates
echo '#define COLUMNS 64' > "$WORK/outside.h"
for line in "#include \"$WORK/outside.h\"" '#include "../outside.h"'; do
    echo "$line" | cat - "$SOURCE/tests/data/templates/trivial/fixture.h" > templates/fixture.h
    t compile attention_forward --arch sm_90a --templates templates --store none
done
mkdir fifo && cp /dev/null fifo/attention_forward.cu && mkfifo fifo/x.h
t compile attention_forward --templates fifo
