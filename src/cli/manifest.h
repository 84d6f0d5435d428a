/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets of kernels: a manifest names templates and values, and stands for all their combinations.
 *
 *   { "schema": 1, "doc": "...", "arch": ["sm_90a"],
 *     "kernels": [ { "template": "attention_forward",
 *                    "values": { "head_dim": [64, 128], "dtype": ["bf16", "fp16"] } } ] }
 *
 * "doc" and "arch" may be left out; an "arch" beside a template counts for that template.
 */
#ifndef FFA_CLI_MANIFEST_H
#define FFA_CLI_MANIFEST_H

#include "cli/cli.h"

enum {
    MANIFEST_SETTINGS_MAX = 32,
    MANIFEST_KERNELS_MAX = 100000, /* of a manifest, all combinations */
    MANIFEST_TEXT_BYTES = 256      /* "attention_forward head_dim=64 dtype=bf16 sm_90a" */
};

/* One kernel of a manifest. All texts belong to `json`:
 * {"template": "...", "settings": ["name=value", ...], "arch": "sm_90a"}. */
struct manifest_kernel {
    json_t *json;
    ffa_compile_request request; /* its settings: the array below */
    const char *settings[MANIFEST_SETTINGS_MAX];
    char text[MANIFEST_TEXT_BYTES];
};

struct manifest {
    struct manifest_kernel **at;
    int64_t count;
};

/* Read `text` and append all it stands for to `out`. `name` is what errors call it; `archs` is
 * "A[,B]" or NULL: the manifest's, else `arch`. FFA_INVALID says where and what; FFA_NOMEM. */
ffa_status manifest_read(struct manifest *out, const char *name, const char *text, size_t bytes,
                         const char *archs, const char *arch, ffa_error *err);
/* Takes over `json`, a manifest_kernel's; FFA_INVALID where it is none. */
ffa_status manifest_add(struct manifest *manifest, json_t *json, ffa_error *err);
void manifest_drop_last(struct manifest *manifest);
void manifest_finish(struct manifest *manifest);

/* The manifests built in: NULL for an unknown name. */
const char *manifest_preset(const char *name, size_t *bytes);

#endif
