/* SPDX-License-Identifier: Apache-2.0
 *
 * Host time of calls, on a GPU: a forward call (which only enqueues), building a plan, uploading
 * it, and looking a kernel up in the store and loading it. Exit 77 where there is no GPU.
 *
 *   bench_call [--json]
 *
 * Times are medians. The store is in a new folder under /var/tmp, which is removed afterwards.
 */
#include <ffa/ffa.h>

#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RUNS = 51, CALLS = 200, HEADS_Q = 64, HEADS_KV = 8, HEAD_DIM = 128 };

static ffa_error err;

static void must(ffa_status rc, const char *what)
{
    if (rc == FFA_OK)
        return;
    fprintf(stderr, "bench_call: %s: %s\n", what, err.message);
    exit(1);
}

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static double median(double *samples)
{
    qsort(samples, RUNS, sizeof *samples, compare);
    return samples[RUNS / 2];
}

static ffa_context *open_context(const char *store)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_context_info info = FFA_CONTEXT_INFO_INIT;
    ffa_context *context;

    opts.cache_path = store;
    must(ffa_open(&context, FFA_DEVICE_AUTO, &opts, &err), "open");
    must(ffa_context_info_get(context, &info, &err), "info");
    if (info.device == FFA_DEVICE_CPU) {
        printf("skipped: no GPU that a kernel exists for\n");
        exit(77);
    }
    return context;
}

static double store_hit_us(const char *store, const ffa_attention_spec *spec)
{
    double samples[RUNS];

    for (int i = 0; i < RUNS; i++) {
        ffa_context *context = open_context(store);
        ffa_kernel_info info = FFA_KERNEL_INFO_INIT;
        ffa_kernels *kernels;
        double start = now_us();

        must(ffa_kernels_create(&kernels, context, spec, &err), "kernels");
        samples[i] = now_us() - start;
        must(ffa_kernels_info(kernels, &info, &err), "info");
        if (i > 0 && info.layer != FFA_LAYER_STORE) {
            fprintf(stderr, "bench_call: the store did not answer (%s)\n",
                    ffa_layer_text(info.layer));
            exit(1);
        }
        ffa_kernels_destroy(kernels);
        ffa_close(context);
    }
    return median(samples);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

int main(int argc, char **argv)
{
    const bool is_json = argc > 1 && !strcmp(argv[1], "--json");
    char folder[] = "/var/tmp/ffa-bench-XXXXXX", store[64];
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;
    ffa_forward_args args = FFA_FORWARD_ARGS_INIT;
    ffa_plan_info info = FFA_PLAN_INFO_INIT;
    double forward[RUNS], create[RUNS], upload[RUNS], hit;
    ffa_context *context;
    ffa_kernels *kernels;
    ffa_mask *mask;
    ffa_plan *plan;
    void *buffer, *memory;
    const int64_t tokens = 128;

    if (!mkdtemp(folder)) {
        perror("bench_call: mkdtemp");
        return 1;
    }
    (void)snprintf(store, sizeof store, "%s/kernels.ffadb", folder);
    spec.dtype = FFA_BF16;
    spec.head_dim = HEAD_DIM;
    hit = store_hit_us(store, &spec);

    context = open_context(store);
    must(ffa_kernels_create(&kernels, context, &spec, &err), "kernels");
    must(ffa_mask_parse(&mask, "causal:128", &err), "mask");
    must(ffa_plan_create(&plan, kernels, mask, &err), "plan");
    must(ffa_plan_info_get(plan, &info, &err), "plan info");
    must(ffa_workspace_bytes(kernels, plan, &args.workspace_bytes, &err), "workspace");
    must(ffa_device_alloc(&buffer, context, info.upload_bytes, &err), "allocate");
    must(ffa_device_alloc(&args.workspace, context, args.workspace_bytes, &err), "allocate");
    must(ffa_device_alloc(&memory, context, tokens * HEADS_Q * HEAD_DIM * 2 * 4, &err), "allocate");
    args.heads_q = HEADS_Q;
    args.heads_kv = HEADS_KV;
    args.q.data = memory;
    args.k.data = (char *)memory + tokens * HEADS_Q * HEAD_DIM * 2;
    args.v.data = (char *)memory + tokens * HEADS_Q * HEAD_DIM * 4;
    args.out.data = (char *)memory + tokens * HEADS_Q * HEAD_DIM * 6;
    must(ffa_device_alloc(&args.lse.data, context, tokens * HEADS_Q * 4, &err), "allocate");
    for (int i = 0; i < RUNS; i++) {
        ffa_plan *again;
        double start = now_us();

        must(ffa_plan_create(&again, kernels, mask, &err), "plan");
        create[i] = now_us() - start;
        ffa_plan_destroy(again);
        start = now_us();
        must(ffa_plan_upload(plan, kernels, buffer, NULL, &err), "upload");
        upload[i] = now_us() - start;
        must(ffa_device_synchronize(context, &err), "finish");
        start = now_us();
        for (int call = 0; call < CALLS; call++)
            must(ffa_forward(kernels, plan, &args, NULL, &err), "forward");
        forward[i] = (now_us() - start) / CALLS;
        must(ffa_device_synchronize(context, &err), "finish");
    }
    printf(is_json
               ? "{\"forward_us\":%.3f,\"plan_us\":%.3f,\"upload_us\":%.3f,\"store_hit_us\":%.1f}\n"
               : "forward call %.2f us, plan of one tile %.2f us, its upload %.2f us, "
                 "store to loaded kernel %.0f us\n",
           median(forward), median(create), median(upload), hit);
    ffa_plan_destroy(plan);
    ffa_mask_destroy(mask);
    ffa_kernels_destroy(kernels);
    ffa_device_free(context, args.lse.data);
    ffa_device_free(context, memory);
    ffa_device_free(context, buffer);
    ffa_device_free(context, args.workspace);
    ffa_close(context);
    (void)nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return 0;
}
