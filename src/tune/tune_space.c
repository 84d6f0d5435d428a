/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a tile is legal is asked of the code that would load its kernel (kernels_list), so that a
 * limit of the template cannot be forgotten here. Ring slots follow from the tile: as many as fit,
 * which is what choose_spec takes, and what a plan's kernel of that tile will have.
 */
#include "tune/tune_space.h"

#include "choose/tile_choice.h"

enum { CONSUMERS_MAX = 3, TILE_N_MIN = 64, TILE_N_MAX = 192, TILE_N_STEP = 16 };

ffa_attention_spec tune_space_spec(const struct tune_record *record, int32_t configuration)
{
    const struct tune_configuration *of = &record->configurations[configuration];
    ffa_attention_spec spec = FFA_ATTENTION_SPEC_INIT;

    spec.dtype = (ffa_dtype)record->dtype;
    spec.head_dim = record->head_dim;
    spec.head_dim_v = record->head_dim_v;
    spec.heads_q = record->heads_q;
    spec.heads_kv = record->heads_kv;
    spec.pack_heads = record->pack_heads;
    spec.split = 0;
    spec.tile_m = 64 * of->consumers;
    spec.tile_n = of->tile_n;
    return spec;
}

static ffa_status check(const ffa_attention_spec *spec, ffa_error *err)
{
    const struct {
        const char *name;
        int64_t value;
    } open[] = { { "tile_m", spec->tile_m },
                 { "tile_n", spec->tile_n },
                 { "backward_tile_m", spec->backward_tile_m },
                 { "backward_tile_n", spec->backward_tile_n },
                 { "flags", spec->flags } };

    if (spec->dtype != FFA_BF16 && spec->dtype != FFA_FP16)
        return error_fail(err, FFA_INVALID, 0, "tune: dtype is %d, not %d (bf16) or %d (fp16)",
                          (int)spec->dtype, FFA_BF16, FFA_FP16);
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        if (open[i].value)
            return error_fail(err, FFA_INVALID, 0,
                              "tune: %s is %lld, not 0: a session measures forward kernels "
                              "without further features, and their tiles itself",
                              open[i].name, (long long)open[i].value);
    if (spec->heads_q < 1 || spec->heads_kv < 1 || spec->heads_q % spec->heads_kv)
        return error_fail(err, FFA_INVALID, 0,
                          "tune: heads are %d:%d, not positive, query heads a multiple of kv heads",
                          spec->heads_q, spec->heads_kv);
    return FFA_OK;
}

/* Add a configuration if the template can have it; only FFA_NOMEM fails. */
static ffa_status add(struct tune_record *record, const struct tune_configuration *configuration,
                      const char *arch, const struct choose_device *device, ffa_error *err)
{
    const int32_t index = record->configuration_count;
    ffa_attention_spec spec;
    struct kernel_list list;
    ffa_status rc;

    assert(index < TUNE_CONFIGURATIONS_MAX);
    record->configurations[index] = *configuration;
    spec = tune_space_spec(record, index);
    rc = kernels_list(&list, &spec, arch, device, err);
    if (rc == FFA_NOMEM)
        return rc;
    if (rc != FFA_OK)
        return FFA_OK;
    record->configurations[index].kv_slots = jit_spec_get(&list.resolved[0], "kv_slots");
    record->configurations[index].shared_bytes = jit_spec_shared_bytes(&list.resolved[0]);
    record->configuration_count++;
    return FFA_OK;
}

static ffa_status check_baseline(const struct tune_record *record, const char *arch,
                                 const struct choose_device *device, ffa_error *err)
{
    const ffa_attention_spec spec = tune_space_spec(record, 0);
    struct kernel_list list;

    return kernels_list(&list, &spec, arch, device, err);
}

/* The configuration that a text names; -1: none. */
static int32_t find(const struct tune_record *record, const char *text)
{
    for (int32_t i = 1; text && i < record->configuration_count; i++) {
        char tile[32];

        text_copy(tile, "%dx%d", 64 * record->configurations[i].consumers,
                  record->configurations[i].tile_n);
        if (!strcmp(text, tile))
            return i;
    }
    return -1;
}

ffa_status tune_space_keep(struct tune_record *record, const char *const *texts, int64_t count,
                           ffa_error *err)
{
    bool is_kept[TUNE_CONFIGURATIONS_MAX] = { true };
    int32_t kept = 0;

    for (int64_t i = 0; i < count; i++) {
        const int32_t at = find(record, texts[i]);

        if (at < 0)
            return error_fail(err, FFA_INVALID, 0,
                              "tune: tiles[%lld] is '%.30s', no tile that the kernel can have for "
                              "the spec, such as '%dx%d'",
                              (long long)i, texts[i] ? texts[i] : "NULL",
                              64 *
                                  record->configurations[record->configuration_count - 1].consumers,
                              record->configurations[record->configuration_count - 1].tile_n);
        if (is_kept[at])
            return error_fail(err, FFA_INVALID, 0, "tune: tiles[%lld], '%.30s', is there twice",
                              (long long)i, texts[i]);
        is_kept[at] = true;
    }
    for (int32_t i = 0; i < record->configuration_count; i++)
        if (is_kept[i])
            record->configurations[kept++] = record->configurations[i];
    record->configuration_count = kept;
    return FFA_OK;
}

ffa_status tune_space_build(struct tune_record *record, const ffa_attention_spec *spec,
                            const char *arch, const struct choose_device *device, ffa_error *err)
{
    const struct tune_configuration open = { .registers = -1,
                                             .shared_bytes = -1,
                                             .spill_bytes = -1 };
    ffa_status rc;

    FFA_TRY(check(spec, err));
    record->head_dim = spec->head_dim;
    record->head_dim_v = spec->head_dim_v ? spec->head_dim_v : spec->head_dim;
    record->dtype = (int32_t)spec->dtype;
    record->heads_q = spec->heads_q;
    record->heads_kv = spec->heads_kv;
    record->pack_heads = spec->pack_heads == FFA_PACK_AUTO
                             ? choose_pack_heads(device->costs, spec->heads_q / spec->heads_kv)
                             : spec->pack_heads;
    record->trying = -1;
    text_copy(record->arch, "%s", arch);
    record->configurations = mem_array(TUNE_CONFIGURATIONS_MAX, sizeof *record->configurations);
    if (!record->configurations)
        return error_nomem(err, "a tuning session");
    FFA_TRY(add(record, &open, arch, device, err));
    if (!record->configuration_count)
        FFA_TRY(check_baseline(record, arch, device, err)); /* to hear why */
    for (int32_t consumers = 1; consumers <= CONSUMERS_MAX; consumers++)
        for (int32_t tile_n = TILE_N_MIN; tile_n <= TILE_N_MAX; tile_n += TILE_N_STEP) {
            struct tune_configuration next = open;

            next.consumers = consumers;
            next.tile_n = tile_n;
            FFA_TRY(add(record, &next, arch, device, err));
        }
out:
    return rc;
}
