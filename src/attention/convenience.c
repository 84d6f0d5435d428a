/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_attention: kernels kept by spec and heads, a plan and device memory for one call.
 */
#include "attention/attention.h"

/* Kept in the context, one a spec. */
struct kept_kernels {
    struct context_object object;
    ffa_attention_spec spec;
    ffa_kernels *kernels; /* owned */
};

static bool kept_matches(const struct context_object *object, const void *wanted)
{
    return !memcmp(&((const struct kept_kernels *)object)->spec, wanted,
                   sizeof(ffa_attention_spec));
}

static void kept_destroy(struct context_object *object)
{
    struct kept_kernels *kept = (struct kept_kernels *)object;

    ffa_kernels_destroy(kept->kernels);
    mem_free(kept);
}

static const struct context_kind kept_kind = { kept_matches, kept_destroy };

static ffa_status kept_create(struct kept_kernels **out, ffa_context *context,
                              const ffa_attention_spec *spec, ffa_error *err)
{
    struct kept_kernels *kept = mem_array(1, sizeof *kept);
    ffa_status rc;

    *out = NULL;
    if (!kept)
        return error_nomem(err, "kept kernels");
    kept->spec = *spec;
    FFA_TRY(ffa_kernels_create(&kept->kernels, context, spec, err));
    *out = kept;
    kept = NULL;
out:
    mem_free(kept);
    return rc;
}

/* The kernels of a spec, made at its first use. Two threads may both make them: the second's are
 * destroyed. */
static ffa_status kept_find(const ffa_kernels **out, ffa_context *context,
                            const ffa_attention_spec *spec, ffa_error *err)
{
    struct context_object *object = context_keep(context, &kept_kind, spec, NULL);
    struct kept_kernels *fresh = NULL;
    ffa_status rc = FFA_OK;

    *out = NULL;
    if (!object) {
        FFA_TRY(kept_create(&fresh, context, spec, err));
        object = context_keep(context, &kept_kind, spec, &fresh->object);
        if (object != &fresh->object)
            kept_destroy(&fresh->object);
    }
    *out = ((const struct kept_kernels *)object)->kernels;
out:
    return rc;
}

/* The heads of the call, for a spec that leaves a choice to them. Arguments that are not valid are
 * left for ffa_forward to refuse. */
static void heads_fill(ffa_attention_spec *spec, const ffa_forward_args *args)
{
    if ((spec->pack_heads != FFA_PACK_AUTO && spec->split != FFA_SPLIT_AUTO) || spec->heads_q ||
        spec->heads_kv ||
        check_heads("", args->heads_q, args->heads_kv, FFA_HEADS_MAX, NULL) != FFA_OK)
        return;
    spec->heads_q = args->heads_q;
    spec->heads_kv = args->heads_kv;
}

ffa_status ffa_attention(ffa_context *context, const ffa_mask *mask,
                         const ffa_attention_spec *spec_in, const ffa_forward_args *args_in,
                         ffa_stream stream, ffa_error *err)
{
    const ffa_kernels *kernels;
    ffa_plan *plan = NULL;
    unsigned char *memory = NULL;
    ffa_plan_opts plan_opts = FFA_PLAN_OPTS_INIT;
    ffa_attention_spec spec;
    ffa_forward_args args;
    int64_t plan_bytes = 0;
    ffa_status rc;

    if (!context || !mask || !spec_in || !args_in)
        return error_fail(err, FFA_INVALID, 0, "ffa_attention: %s is NULL",
                          !context   ? "context"
                          : !mask    ? "mask"
                          : !spec_in ? "spec"
                                     : "args");
    FFA_TRY(opts_import(&spec, sizeof spec, spec_in, err));
    spec.struct_size = sizeof spec;
    FFA_TRY(opts_import(&args, sizeof args, args_in, err));
    args.struct_size = sizeof args;
    heads_fill(&spec, &args);
    FFA_TRY(kept_find(&kernels, context, &spec, err));
    plan_opts.heads_q = kernels->is_split ? args.heads_q : 0;
    FFA_TRY(ffa_plan_create_with(&plan, kernels, mask, &plan_opts, err));
    FFA_TRY(ffa_workspace_bytes(kernels, plan, &args.workspace_bytes, err));
    plan_bytes = (plan->image.bytes + 255) / 256 * 256;
    if (context->gpu) {
        void *allocated;

        FFA_TRY(gpu_alloc_enqueue(context->gpu, &allocated, plan_bytes + args.workspace_bytes,
                                  stream, err));
        memory = allocated;
        FFA_TRY(ffa_plan_upload(plan, kernels, memory, stream, err));
        args.workspace = memory + plan_bytes;
    }
    FFA_TRY(ffa_forward(kernels, plan, &args, stream, err));
out:
    if (memory) {
        ffa_status freed =
            gpu_free_enqueue(context->gpu, memory, stream, rc == FFA_OK ? err : NULL);

        if (rc == FFA_OK)
            rc = freed;
    }
    ffa_plan_destroy(plan);
    return rc;
}
