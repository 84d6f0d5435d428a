/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a tile is legal is asked of the code that would load its kernel (kernels_list), so that a
 * limit of the template cannot be forgotten here. Ring slots follow from the tile: as many as fit,
 * which is what choose_spec takes, and what a plan's kernel of that tile will have.
 */
#include "tune/tune_space.h"

#include "choose/order.h"
#include "choose/tile_choice.h"
#include "tile/tile.h"

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
    if (tune_is_backward(record))
        spec.flags = FFA_SPEC_BACKWARD | (record->is_deterministic ? FFA_SPEC_DETERMINISTIC : 0u);
    if (record->backward_cluster) { /* no plan is for another kernel than the record says */
        spec.backward_tile_m = record->backward_tile_m;
        spec.backward_tile_n = record->backward_tile_n;
    }
    spec.tile_m = 64 * of->consumers;
    spec.tile_n = of->tile_n;
    return spec;
}

/* known: flags that the session is for. */
static ffa_status check(const ffa_attention_spec *spec, uint32_t known, ffa_error *err)
{
    const struct {
        const char *name;
        int64_t value;
    } open[] = { { "tile_m", spec->tile_m },
                 { "tile_n", spec->tile_n },
                 { "backward_tile_m", spec->backward_tile_m },
                 { "backward_tile_n", spec->backward_tile_n },
                 { "flags", spec->flags & ~known } };

    if (spec->dtype != FFA_BF16 && spec->dtype != FFA_FP16)
        return error_fail(err, FFA_INVALID, 0, "tune: dtype is %d, not %d (bf16) or %d (fp16)",
                          (int)spec->dtype, FFA_BF16, FFA_FP16);
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        if (open[i].value)
            return error_fail(err, FFA_INVALID, 0,
                              "tune: %s is %lld, not 0: a session measures kernels without "
                              "further features, and chooses tiles itself",
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

void tune_space_keep_part(struct tune_record *record, int32_t part, int32_t count)
{
    int32_t kept = 1;

    for (int32_t i = 1; i < record->configuration_count; i++)
        if ((i - 1) % count == part)
            record->configurations[kept++] = record->configurations[i];
    record->configuration_count = kept;
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

static const struct tune_configuration open_configuration = { .registers = -1,
                                                              .shared_bytes = -1,
                                                              .spill_bytes = -1 };

/* What a session is of, and no configurations. */
static ffa_status begin(struct tune_record *record, const ffa_attention_spec *spec,
                        const char *arch, const struct choose_device *device, ffa_error *err)
{
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
    return record->configurations ? FFA_OK : error_nomem(err, "a tuning session");
}

ffa_status tune_space_build(struct tune_record *record, const ffa_attention_spec *spec,
                            const char *arch, const struct choose_device *device, ffa_error *err)
{
    ffa_status rc;

    FFA_TRY(check(spec, 0, err));
    FFA_TRY(begin(record, spec, arch, device, err));
    FFA_TRY(add(record, &open_configuration, arch, device, err));
    if (!record->configuration_count)
        FFA_TRY(check_baseline(record, arch, device, err)); /* to hear why */
    for (int32_t consumers = 1; consumers <= CONSUMERS_MAX; consumers++)
        for (int32_t tile_n = TILE_N_MIN; tile_n <= TILE_N_MAX; tile_n += TILE_N_STEP) {
            struct tune_configuration next = open_configuration;

            next.consumers = consumers;
            next.tile_n = tile_n;
            FFA_TRY(add(record, &next, arch, device, err));
        }
out:
    return rc;
}

/* ---- orders ---- */

_Static_assert((int)TUNE_WAVES_MAX == (int)ORDER_WAVES_MAX, "sessions have all orders");

static void add_order(struct tune_record *record, struct backward_order order, bool is_unlocked)
{
    struct tune_configuration next = open_configuration;

    if (record->configuration_count == TUNE_CONFIGURATIONS_MAX)
        return;
    next.parts = order.parts;
    next.waves = order.waves;
    next.whole_heads = order.whole_heads;
    next.is_unlocked = is_unlocked;
    record->configurations[record->configuration_count++] = next;
}

/* All kv heads divided alike. */
static void add_alike(struct tune_record *record, bool is_unlocked)
{
    const int32_t group = record->heads_q / record->heads_kv;

    for (int32_t parts = 1; parts <= group; parts++)
        for (int32_t waves = 1; group % parts == 0 && waves <= ORDER_WAVES_MAX; waves++)
            add_order(record, (struct backward_order){ parts, waves, 0 }, is_unlocked);
}

static void add_whole(struct tune_record *record)
{
    const int32_t group = record->heads_q / record->heads_kv;

    for (int32_t parts = 2; parts <= group; parts++)
        for (int32_t divided = 1; group % parts == 0 && divided < record->heads_kv; divided *= 2)
            for (int32_t waves = 1; waves <= ORDER_WAVES_MAX; waves++)
                add_order(record,
                          (struct backward_order){ parts, waves, record->heads_kv - divided },
                          false);
}

/* Which masks have lockstep. */
static ffa_status look_at_masks(struct tune_record *record, ffa_error *err)
{
    const struct tile_options options = { .tile_m = record->backward_tile_m,
                                          .tile_n = record->backward_tile_n,
                                          .on_grid = record->is_deterministic != 0 };
    uint64_t bits = 0;
    ffa_status rc = FFA_OK;

    for (int32_t m = 0; m < record->mask_count && rc == FFA_OK; m++) {
        struct tile_plan tiles = { 0 };
        ffa_mask *mask = NULL;

        rc = ffa_mask_parse(&mask, record->masks[m], err);
        if (rc == FFA_OK)
            rc = backward_tiles_build(&tiles, mask, &options, record->heads_q / record->heads_kv,
                                      err);
        if (tiles.lockstep != TILE_LOCKSTEP_NONE)
            bits |= UINT64_C(1) << m;
        tile_finish(&tiles);
        ffa_mask_destroy(mask);
    }
    record->lockstep_masks = (int64_t)bits;
    return rc;
}

ffa_status tune_space_build_orders(struct tune_record *record, const ffa_attention_spec *spec,
                                   const char *arch, const struct choose_device *device,
                                   ffa_error *err)
{
    const uint32_t known = FFA_SPEC_BACKWARD | FFA_SPEC_DETERMINISTIC;
    ffa_attention_spec own;
    struct kernel_list list;
    ffa_kernels kernels;
    ffa_status rc;

    FFA_TRY(check(spec, known, err));
    if (spec->heads_q / spec->heads_kv > TUNE_BACKWARD_GROUP_MAX) {
        rc = error_fail(err, FFA_INVALID, 0,
                        "tune: heads are %d:%d, more than %d query heads of a kv head",
                        spec->heads_q, spec->heads_kv, TUNE_BACKWARD_GROUP_MAX);
        goto out;
    }
    FFA_TRY(begin(record, spec, arch, device, err));
    record->is_deterministic = (spec->flags & FFA_SPEC_DETERMINISTIC) != 0;
    record->backward_tile_m = 1; /* a backward session: tune_space_spec reads it */
    record->configurations[record->configuration_count++] = open_configuration;
    own = tune_space_spec(record, 0);
    FFA_TRY(kernels_outline(&kernels, &list, &own, arch, device, err));
    record->backward_tile_m = kernels.backward[0].tile_m;
    record->backward_tile_n = kernels.backward[0].tile_n;
    record->backward_cluster = kernels.backward[0].cluster;
    FFA_TRY(look_at_masks(record, err));
    add_alike(record, false);
    if (record->lockstep_masks && !record->is_deterministic)
        add_alike(record, true);
    if (kernels_can_leave_whole(&kernels))
        add_whole(record);
out:
    return rc;
}
