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
    WISH_SETTINGS_MAX = 32,
    WISHES_MAX = 100000,  /* of a manifest, all combinations */
    WISH_TEXT_BYTES = 256 /* "attention_forward head_dim=64 dtype=bf16 sm_90a" */
};

/* One kernel asked for. All texts belong to `json`, which is also what a worker is sent:
 * {"template": "...", "settings": ["name=value", ...], "arch": "sm_90a"}. */
struct wish {
    json_t *json;
    ffa_compile_request request; /* its settings: the array below */
    const char *settings[WISH_SETTINGS_MAX];
    char text[WISH_TEXT_BYTES];
};

/* Takes over `json`; FFA_INVALID where it is no wish. The wish must not move afterwards. */
ffa_status wish_init(struct wish *wish, json_t *json, ffa_error *err);
void wish_finish(struct wish *wish);

struct wishes {
    struct wish **at;
    int64_t count;
};

/* Read `text` and append all it stands for to `out`. `name` is what errors call it; `archs` is
 * "A[,B]" or NULL: the manifest's, else `arch`. FFA_INVALID says where and what; FFA_NOMEM. */
ffa_status manifest_read(struct wishes *out, const char *name, const char *text, size_t bytes,
                         const char *archs, const char *arch, ffa_error *err);
/* Takes over `json`, as wish_init does. */
ffa_status wishes_add(struct wishes *wishes, json_t *json, ffa_error *err);
void wishes_drop_last(struct wishes *wishes);
void wishes_finish(struct wishes *wishes);

/* The manifests built in: NULL for an unknown name. */
const char *manifest_preset(const char *name, size_t *bytes);

#endif
