/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets of kernels: a manifest names specs, or templates, with values, and stands for all
 * combinations of these.
 *
 *   { "schema": 1, "doc": "...", "arch": ["sm_90a"],
 *     "specs":   [ { "values": { "head_dim": [128, "192:128"], "dtype": "bf16", "backward": 1 } }
 * ], "kernels": [ { "template": "attention_forward", "values": { "head_dim": [64, 128], "dtype":
 * ["bf16", "fp16"] } } ] }
 *
 * The values of a spec are the items of ffa_attention_spec_parse; each combination stands for all
 * kernels of ffa_spec_requests. "doc", "arch" and one of the lists may be left out; an "arch" in an
 * element of a list counts for that element.
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
    /* The kernels of specs are those by the cost tables of a context, borrowed: of a device model,
     * borrowed, or by every table that it has; context NULL: by the default table alone. */
    ffa_context *context;
    const char *device; /* NULL: every table */
};

/* Read `text` and append all it stands for to `out`. `name` is what errors call it; `archs` is
 * "A[,B]" or NULL: the manifest's, else `arch`. FFA_INVALID says where and what; FFA_NOMEM. */
ffa_status manifest_read(struct manifest *out, const char *name, const char *text, size_t bytes,
                         const char *archs, const char *arch, ffa_error *err);
/* The same of what a text would have held. */
ffa_status manifest_read_json(struct manifest *out, const char *name, const json_t *root,
                              const char *archs, const char *arch, ffa_error *err);
/* The kernels of a list of texts such as "head_dim=128,dtype=bf16,backward". */
ffa_status manifest_read_specs(struct manifest *out, const json_t *specs, const char *archs,
                               const char *arch, ffa_error *err);
/* Takes over `json`, a manifest_kernel's; FFA_INVALID where it is none. */
ffa_status manifest_add(struct manifest *manifest, json_t *json, ffa_error *err);
void manifest_drop_last(struct manifest *manifest);
void manifest_finish(struct manifest *manifest);

/* ---- presets (preset.c) ---- */

/* The manifest of a preset: "training", "inference", "all", or the name of a model of
 * cache/models.json. *out: the caller's. FFA_INVALID names all. */
ffa_status preset_make(json_t **out, const char *name, ffa_error *err);

#endif
