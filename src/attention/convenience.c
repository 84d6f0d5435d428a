/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_attention: kernels kept by spec and heads, a plan and device memory for one call.
 */
#include "attention/attention.h"

/* The kernels of a spec, made at its first use. The lock is not held while they are: two threads
 * may both make them, and the second's are dropped. */
static ffa_status kept_find(const ffa_kernels **out, ffa_context *context,
                            const ffa_attention_spec *spec, ffa_error *err)
{
    struct kept_kernels *node = NULL;
    ffa_status rc = FFA_OK;

    *out = NULL;
    for (int pass = 0; pass < 2 && !*out; pass++) {
        if (pass == 1) {
            node = mem_array(1, sizeof *node);
            if (!node)
                return error_nomem(err, "kept kernels");
            node->spec = *spec;
            rc = ffa_kernels_create(&node->kernels, context, spec, err);
            if (rc != FFA_OK)
                break;
        }
        (void)pthread_mutex_lock(&context->kept_lock);
        for (struct kept_kernels *at = context->kept; at && !*out; at = at->next)
            if (!memcmp(&at->spec, spec, sizeof *spec))
                *out = at->kernels;
        if (!*out && node) {
            node->next = context->kept;
            context->kept = node;
            *out = node->kernels;
            node = NULL;
        }
        (void)pthread_mutex_unlock(&context->kept_lock);
    }
    if (node)
        ffa_kernels_destroy(node->kernels);
    mem_free(node);
    return rc;
}

/* The heads of the call, for a spec that leaves a choice to them. Arguments that are not valid are
 * left for ffa_forward to refuse. */
static void heads_fill(ffa_attention_spec *spec, const ffa_forward_args *args_in)
{
    ffa_forward_args args;

    if ((spec->pack_heads != FFA_PACK_AUTO && spec->split != FFA_SPLIT_AUTO) || spec->heads_q ||
        spec->heads_kv || opts_import(&args, sizeof args, args_in, NULL) != FFA_OK ||
        args.heads_kv < 1 || args.heads_q < 1 || args.heads_q > FFA_HEADS_MAX ||
        args.heads_q % args.heads_kv)
        return;
    spec->heads_q = args.heads_q;
    spec->heads_kv = args.heads_kv;
}

ffa_status ffa_attention(ffa_context *context, const ffa_mask *mask,
                         const ffa_attention_spec *spec_in, const ffa_forward_args *args,
                         ffa_stream stream, ffa_error *err)
{
    const ffa_kernels *kernels;
    ffa_plan *plan = NULL;
    unsigned char *memory = NULL;
    ffa_plan_opts plan_opts = FFA_PLAN_OPTS_INIT;
    ffa_attention_spec spec;
    int64_t plan_bytes = 0, workspace_bytes = 0;
    ffa_status rc;

    if (!context || !mask || !spec_in || !args)
        return error_fail(err, FFA_INVALID, 0, "ffa_attention: %s is NULL",
                          !context   ? "context"
                          : !mask    ? "mask"
                          : !spec_in ? "spec"
                                     : "args");
    FFA_TRY(opts_import(&spec, sizeof spec, spec_in, err));
    spec.struct_size = sizeof spec;
    heads_fill(&spec, args);
    FFA_TRY(kept_find(&kernels, context, &spec, err));
    plan_opts.heads_q = kernels->is_split ? args->heads_q : 0;
    FFA_TRY(ffa_plan_create_with(&plan, kernels, mask, &plan_opts, err));
    FFA_TRY(ffa_workspace_bytes(kernels, plan, &workspace_bytes, err));
    plan_bytes = (plan->image_bytes + 255) / 256 * 256;
    if (context->gpu) {
        void *allocated;

        FFA_TRY(
            gpu_alloc_enqueue(context->gpu, &allocated, plan_bytes + workspace_bytes, stream, err));
        memory = allocated;
        FFA_TRY(ffa_plan_upload(plan, kernels, memory, stream, err));
        FFA_TRY(ffa_workspace_init(kernels, memory + plan_bytes, workspace_bytes, stream, err));
    }
    FFA_TRY(ffa_forward(kernels, plan, args, memory ? memory + plan_bytes : NULL, stream, err));
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
