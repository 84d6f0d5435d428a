/* SPDX-License-Identifier: Apache-2.0
 *
 * The model that plans choose tiles by, beside the device: random masks and heads, each with every
 * kernel that its plan could be for. Exit 77 where there is no GPU.
 *
 *   bench_model [--cases N] [--seed N] [--laps N] [--tokens MIN:MAX] [--spec SPEC]...
 *               [--cost-tables PATH] [--json FILE]
 *
 * Prints how far the model's times are off, and how long what a plan chooses takes beside the best
 * kernel of its case. With --cost-tables also what the choice of that table gains over that of the
 * built-in ones, on masks that no session has timed. FILE gets a line for each case, for
 * plot_model.py. Where kernels are kept, and whether they may be compiled, is as for `ffa`: by
 * FFA_CACHE_DIR, FFA_BUNDLES, FFA_JIT.
 *
 * Times are as those of a tuning session: kernels take turns, a sample is about 40 ms of calls with
 * cold tensors, after as many that do not count. What a call takes whatever its tiles is fitted,
 * one number for all cases. A table without microseconds (unit_us 0) says only which kernel is
 * faster: its times are scaled by the median of the device's in their group, where that has three
 * or more.
 */
#include "tune/tune_gpu.h"
#include "tune/tune_space.h"
#include "tune/tune_stats.h"
#include <ffa/ffa.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>

enum {
    ITEMS_MAX = 8,
    CASES_MAX = 1000,
    LAPS_MAX = 32,
    SPECS_MAX = 32,
    TIMEOUT_MS = 20000,
    DOCUMENTS_MAX = 12
};
static const double FLOPS_MAX = 1.5e13; /* of a call: some 25 ms */
enum {
    UNIT_TIMES_MIN = 3, /* of a group, to scale it by */
    CALL_STEPS = 64     /* of the shortest time: how finely what a call takes is looked for */
};
enum { DRAWS_MAX = 100 }; /* of masks, until one is small enough */

static ffa_error err;

static void must(ffa_status rc, const char *what)
{
    if (rc == FFA_OK)
        return;
    (void)fprintf(stderr, "bench_model: %s: %s\n", what, err.message);
    exit(1);
}

static void refuse(const char *what)
{
    (void)fprintf(stderr, "bench_model: %s\n", what);
    exit(2);
}

/* ---- what is drawn ---- */

/* splitmix64 (Steele et al. 2014). */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int64_t draw_in(uint64_t *state, int64_t min, int64_t max)
{
    return min + (int64_t)(draw(state) % (uint64_t)(max - min + 1));
}

/* As likely between 512 and 1024 as between 16k and 32k. */
static int64_t draw_size(uint64_t *state, int64_t min, int64_t max)
{
    const double share = (double)(draw(state) >> 11) / 9007199254740992.0;

    return max64(min, min64(max, (int64_t)((double)min * pow((double)max / (double)min, share))));
}

static void draw_spec(char out[96], uint64_t *state)
{
    static const struct {
        const char *head_dim, *heads;
    } kinds[] = {
        { "128", "16:16" },     { "128", "64:8" }, { "128", "8:1" },       { "128", "32:8" },
        { "64", "64:8" },       { "64", "16:16" }, { "256", "16:16" },     { "256", "64:8" },
        { "192:128", "32:32" }, { "256", "16:2" }, { "192:128", "16:16" }, { "128", "32:32" },
    };
    const int kind = (int)(draw(state) % (sizeof kinds / sizeof *kinds));

    text_format(out, 96, "head_dim=%s,heads=%s%s", kinds[kind].head_dim, kinds[kind].heads,
                draw(state) % 3 ? "" : ",pack=0");
}

/* Lengths of documents that fill the tokens. */
static void draw_documents(char out[128], uint64_t *state, int64_t tokens)
{
    const int64_t count = min64(draw_in(state, 2, DOCUMENTS_MAX), max64(1, tokens / 8));
    int64_t left = tokens;
    size_t used = 0;

    for (int64_t i = 0; i < count; i++) {
        const int64_t most = left - (count - 1 - i);
        const int64_t length =
            i == count - 1 ? left : draw_in(state, 1, max64(1, min64(most, 2 * tokens / count)));

        text_format(out + used, 128 - used, "%s%lld", i ? "," : "", (long long)length);
        used = strlen(out);
        left -= length;
    }
}

/* A mask of one of the builders. */
static void draw_mask(char out[TUNE_MASK_BYTES], uint64_t *state, int64_t n)
{
    const long long tokens = n, left = draw_size(state, max64(1, n / 64), max64(2, n / 2));
    const long long block = max64(1, n / draw_in(state, 4, 16));
    char lengths[128];

    draw_documents(lengths, state, n);
    switch (draw(state) % 10) {
    case 0:
        text_format(out, TUNE_MASK_BYTES, "full:%lld", tokens);
        break;
    case 1:
    case 2:
        text_format(out, TUNE_MASK_BYTES, "causal:%lld", tokens);
        break;
    case 3:
        text_format(out, TUNE_MASK_BYTES, "window:%lld,left=%lld,right=0", tokens, left);
        break;
    case 4:
        text_format(out, TUNE_MASK_BYTES, "window:%lld,left=%lld,right=%lld", tokens, left, left);
        break;
    case 5:
        text_format(out, TUNE_MASK_BYTES, "varlen-causal:%s", lengths);
        break;
    case 6:
        text_format(out, TUNE_MASK_BYTES, "varlen-full:%s", lengths);
        break;
    case 7:
        text_format(out, TUNE_MASK_BYTES, "varlen-window:%s/left=%lld,right=0", lengths, left);
        break;
    case 8:
        text_format(out, TUNE_MASK_BYTES, "block-causal:%lld/block=%lld", tokens, block);
        break;
    default:
        text_format(out, TUNE_MASK_BYTES, "shared-prefix:%s", lengths);
    }
}

/* ---- options ---- */

struct options {
    int64_t cases, seed, laps, tokens_min, tokens_max;
    const char *specs[SPECS_MAX];
    int spec_count;
    const char *cost_tables, *json;
};

static int64_t number_of(const char *text, const char **end)
{
    char *stop = NULL;
    const int64_t value = text ? strtoll(text, &stop, 10) : -1;

    if (end)
        *end = stop;
    return value;
}

static void help(void)
{
    puts("usage: bench_model [options]\n"
         "  --cases N         random masks and heads, 1 to 1000; 40\n"
         "  --seed N          that they are drawn from; 1\n"
         "  --laps N          turns of all kernels of a case, 1 to 32; 3\n"
         "  --tokens MIN:MAX  of a mask; 512:32768\n"
         "  --spec SPEC       draw from these specs, as of ffa tune run; repeatable\n"
         "  --cost-tables PATH  also what this table gains over the built-in ones\n"
         "  --json FILE       a line a case, for plot_model.py");
    exit(0);
}

static void read_option(struct options *options, const char *name, const char *value)
{
    const char *end = NULL;

    if (!strcmp(name, "--help"))
        help();
    if (!value)
        refuse("an option wants a value");
    if (!strcmp(name, "--cases")) {
        options->cases = number_of(value, NULL);
    } else if (!strcmp(name, "--seed")) {
        options->seed = number_of(value, NULL);
    } else if (!strcmp(name, "--laps")) {
        options->laps = number_of(value, NULL);
    } else if (!strcmp(name, "--tokens")) {
        options->tokens_min = number_of(value, &end);
        options->tokens_max = number_of(end && *end == ':' ? end + 1 : NULL, NULL);
    } else if (!strcmp(name, "--spec") && options->spec_count < SPECS_MAX) {
        options->specs[options->spec_count++] = value;
    } else if (!strcmp(name, "--cost-tables")) {
        options->cost_tables = value;
    } else if (!strcmp(name, "--json")) {
        options->json = value;
    } else {
        refuse("an option is not known: see bench_model --help");
    }
}

static struct options read_options(int argc, char **argv)
{
    struct options options = {
        .cases = 40, .seed = 1, .laps = 3, .tokens_min = 512, .tokens_max = 32768
    };

    for (int i = 1; i < argc; i += 2)
        read_option(&options, argv[i], argv[i + 1]);
    if (options.cases < 1 || options.cases > CASES_MAX || options.laps < 1 ||
        options.laps > LAPS_MAX || options.tokens_min < 1 ||
        options.tokens_max < options.tokens_min || options.tokens_max > 1 << 20)
        refuse("--cases is in [1, 1000], --laps in [1, 32], --tokens MIN:MAX in [1, 1048576]");
    return options;
}

/* ---- contexts ---- */

static const char *variable(void *user, const char *name)
{
    (void)user;
    return getenv(name);
}

/* The kernels that the command would use, and one place of cost tables. */
static ffa_context *open_context(const char *cost_tables)
{
    ffa_context_opts opts = FFA_CONTEXT_OPTS_INIT;
    ffa_environment *environment;
    ffa_context *context;

    must(ffa_context_opts_from_environment(&opts, &environment, variable, NULL, &err),
         "environment");
    opts.cost_tables = cost_tables;
    must(ffa_open(&context, FFA_DEVICE_AUTO, &opts, &err), "open");
    ffa_environment_destroy(environment);
    if (!context->gpu) {
        (void)printf("skipped: no GPU that a kernel exists for\n");
        exit(77);
    }
    return context;
}

/* ---- a case ---- */

/* A kernel, or what a plan chooses, with its mask. */
struct item {
    struct tune_gpu *gpu;
    int32_t configuration; /* 0: what is chosen */
    int32_t consumers, tile_n;
    bool is_apart;
    double model, table_us; /* of its tiles, as the table says; 0: not known */
    double model_us;        /* and of the call; 0: not known */
    double laps[LAPS_MAX];
    struct tune_median us;
};

struct one_case {
    char spec_text[96], mask_text[TUNE_MASK_BYTES];
    ffa_attention_spec spec;
    ffa_explain_candidate told[2 * ITEMS_MAX];
    int told_count;
    struct item items[ITEMS_MAX]; /* what is chosen first */
    int item_count;
    int reference; /* the item that the built-in tables choose; -1: there is none to compare with */
    bool is_scaled;
    double relative; /* what is chosen, beside the best of the items */
    struct tune_median gain;
};

struct bench {
    struct options options;
    ffa_context *context, *built_in; /* built_in NULL: nothing is compared */
    struct tune_gpu *gpu, *other;
    struct one_case *cases;
    int64_t count;
    double call_us;
};

static int keep(void *user, const ffa_explain_candidate *candidate)
{
    struct one_case *of = user;

    if (!candidate->is_backward && !candidate->is_split && of->told_count < 2 * ITEMS_MAX)
        of->told[of->told_count++] = *candidate;
    return 0;
}

/* What a plan for the spec is like; `of` NULL: its candidates are not kept. */
static ffa_plan_info explain(ffa_context *context, const ffa_attention_spec *spec,
                             const ffa_mask *mask, struct one_case *of)
{
    ffa_explain_query query = FFA_EXPLAIN_QUERY_INIT;
    ffa_explain_info info = FFA_EXPLAIN_INFO_INIT;
    ffa_plan_info plan = FFA_PLAN_INFO_INIT;

    query.spec = spec;
    query.mask = mask;
    must(ffa_explain(context, &query, &plan, &info, of ? keep : NULL, of, &err), "explain");
    return plan;
}

static double flops_of(const struct one_case *of, const ffa_mask *mask)
{
    const int32_t head_dim_v = of->spec.head_dim_v ? of->spec.head_dim_v : of->spec.head_dim;

    return 2.0 * (double)ffa_mask_area(mask, 0) * of->spec.heads_q *
           (of->spec.head_dim + head_dim_v);
}

/* A spec and a mask that do not take too long. */
static ffa_mask *draw_case(const struct bench *bench, struct one_case *of, uint64_t *state)
{
    const struct options *options = &bench->options;
    int64_t tokens = draw_size(state, options->tokens_min, options->tokens_max);
    ffa_mask *mask = NULL;

    if (options->spec_count)
        text_format(of->spec_text, sizeof of->spec_text, "%s",
                    options->specs[draw(state) % (uint64_t)options->spec_count]);
    else
        draw_spec(of->spec_text, state);
    of->spec = (ffa_attention_spec)FFA_ATTENTION_SPEC_INIT;
    of->spec.dtype = FFA_BF16;
    must(ffa_attention_spec_parse(&of->spec, of->spec_text, &err), of->spec_text);
    of->spec.split = 0;
    for (int tries = 0; !mask || flops_of(of, mask) > FLOPS_MAX; tries++) {
        if (tries == DRAWS_MAX)
            refuse("--tokens begins where no mask takes less than a second");
        ffa_mask_destroy(mask);
        draw_mask(of->mask_text, state, tokens);
        must(ffa_mask_parse(&mask, of->mask_text, &err), of->mask_text);
        tokens = max64(options->tokens_min, tokens / 2);
    }
    return mask;
}

/* Rows of the whole kernel, as a spec has them. */
static int32_t warpgroups_of(const ffa_plan_info *plan)
{
    return (plan->tile_m * max32(1, plan->pack_heads) + 63) / 64;
}

/* What the model says of a kernel with these cuts. */
static void set_model(struct item *item, const struct one_case *of)
{
    for (int i = 0; i < of->told_count; i++) {
        const ffa_explain_candidate *told = &of->told[i];

        if (told->consumers != item->consumers || told->tile_n != item->tile_n ||
            (told->is_apart != 0) != item->is_apart)
            continue;
        item->model = told->time;
        item->table_us = told->us;
    }
}

static struct item *add_item(struct one_case *of, struct tune_gpu *gpu, const ffa_plan_info *plan)
{
    struct item *item = &of->items[of->item_count++];

    *item = (struct item){ .gpu = gpu,
                           .consumers = warpgroups_of(plan),
                           .tile_n = plan->tile_n,
                           .is_apart = plan->is_isolated != 0 };
    return item;
}

static bool is_same(const struct item *item, const ffa_plan_info *plan)
{
    return item->consumers == warpgroups_of(plan) && item->tile_n == plan->tile_n &&
           item->is_apart == (plan->is_isolated != 0);
}

/* The record of a session of the case: what is chosen, and the kernels. */
static struct tune_record record_of(const struct bench *bench, const struct one_case *of,
                                    const char *const *tiles, int64_t count)
{
    const struct choose_device device = context_choose_device(bench->context);
    struct tune_record record = { 0 };

    must(tune_space_build(&record, &of->spec, bench->context->arch, &device, &err), "tiles");
    must(tune_space_keep(&record, tiles, count, &err), "tiles");
    record.masks = mem_array(TUNE_MASKS_MAX, sizeof *record.masks);
    if (!record.masks)
        refuse("no memory");
    text_copy(record.masks[record.mask_count++], "%s", of->mask_text);
    tune_gpu_describe(bench->gpu, &record);
    return record;
}

/* The choice, that of the built-in tables if it is another one, and each kernel with the cuts that
 * it gets alone, unless it is the choice. */
static struct tune_record make_items(const struct bench *bench, struct one_case *of,
                                     const ffa_mask *mask)
{
    const ffa_plan_info chosen = explain(bench->context, &of->spec, mask, of);
    char texts[2 * ITEMS_MAX][16];
    const char *tiles[2 * ITEMS_MAX];
    int64_t count = 0;

    set_model(add_item(of, bench->gpu, &chosen), of);
    of->reference = bench->built_in ? 0 : -1;
    if (bench->built_in) {
        const ffa_plan_info other = explain(bench->built_in, &of->spec, mask, NULL);

        if (!is_same(&of->items[0], &other)) {
            of->reference = of->item_count;
            set_model(add_item(of, bench->other, &other), of);
        }
    }
    for (int i = 0; i < of->told_count && of->item_count < ITEMS_MAX; i++) {
        ffa_attention_spec alone = of->spec;
        ffa_plan_info plan;
        bool is_known = i && of->told[i].consumers == of->told[i - 1].consumers &&
                        of->told[i].tile_n == of->told[i - 1].tile_n; /* the other cuts */

        if (is_known)
            continue;
        alone.pack_heads = chosen.pack_heads;
        alone.tile_m = 64 * of->told[i].consumers;
        alone.tile_n = of->told[i].tile_n;
        plan = explain(bench->context, &alone, mask, NULL);
        if (is_same(&of->items[0], &plan))
            continue;
        text_format(texts[count], sizeof *texts, "%dx%d", alone.tile_m, alone.tile_n);
        tiles[count] = texts[count];
        set_model(add_item(of, bench->gpu, &plan), of);
        count++;
    }
    return record_of(bench, of, tiles, count);
}

/* Items of kernels find their configuration in the record. */
static void find_configurations(struct one_case *of, const struct tune_record *record)
{
    const int first = of->reference > 0 ? 2 : 1;

    for (int i = first; i < of->item_count; i++)
        for (int32_t k = 1; k < record->configuration_count; k++)
            if (record->configurations[k].consumers == of->items[i].consumers &&
                record->configurations[k].tile_n == of->items[i].tile_n)
                of->items[i].configuration = k;
}

static void time_items(const struct bench *bench, struct one_case *of,
                       const struct tune_record *record)
{
    const int64_t laps = bench->options.laps;

    for (int64_t lap = 0; lap < laps; lap++)
        for (int i = 0; i < of->item_count; i++) {
            struct item *item = &of->items[(i + lap) % of->item_count];
            const struct tune_device device = tune_gpu_device(item->gpu);
            struct tune_reading reading;

            must(device.prepare(device.user, record, item->configuration, &err), of->mask_text);
            must(device.run(device.user, record, item->configuration, 0, &reading, &err),
                 of->mask_text);
            item->laps[lap] = reading.us;
        }
}

static void sum_up(struct one_case *of, int64_t laps)
{
    double best = HUGE_VAL, values[LAPS_MAX];

    for (int i = 0; i < of->item_count; i++) {
        memcpy(values, of->items[i].laps, (size_t)laps * sizeof *values);
        of->items[i].us = tune_median_of(values, (int32_t)laps);
        best = fmin(best, of->items[i].us.value);
    }
    of->relative = of->items[0].us.value / best;
    if (of->reference <= 0)
        return;
    for (int64_t lap = 0; lap < laps; lap++)
        values[lap] = of->items[of->reference].laps[lap] / of->items[0].laps[lap] - 1;
    of->gain = tune_median_of(values, (int32_t)laps);
}

static void run_case(struct bench *bench, struct one_case *of, uint64_t *state)
{
    ffa_mask *mask = draw_case(bench, of, state);
    struct tune_record record;

    must(tune_gpu_open(&bench->gpu, bench->context, TIMEOUT_MS, &err), "open");
    bench->other = NULL;
    if (bench->built_in)
        must(tune_gpu_open(&bench->other, bench->built_in, TIMEOUT_MS, &err), "open");
    record = make_items(bench, of, mask);
    find_configurations(of, &record);
    time_items(bench, of, &record);
    sum_up(of, bench->options.laps);
    tune_record_finish(&record);
    tune_gpu_close(bench->gpu);
    tune_gpu_close(bench->other);
    ffa_mask_destroy(mask);
}

/* ---- scale ---- */

static bool is_one_group(const struct one_case *a, const struct one_case *b)
{
    return a->spec.head_dim == b->spec.head_dim && a->spec.head_dim_v == b->spec.head_dim_v &&
           (a->spec.pack_heads == 0) == (b->spec.pack_heads == 0);
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static double median(double *values, int64_t count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return count ? values[count / 2] : 0;
}

/* What 1 of the model takes in the cases of a group; 0: it has too few times to tell. */
static double unit_of(const struct bench *bench, const struct one_case *of, double *values)
{
    int64_t count = 0;

    for (int64_t c = 0; c < bench->count; c++)
        for (int i = 0; i < bench->cases[c].item_count; i++)
            if (is_one_group(of, &bench->cases[c]) && bench->cases[c].items[i].model > 0)
                values[count++] = (bench->cases[c].items[i].us.value - bench->call_us) /
                                  bench->cases[c].items[i].model;
    return count < UNIT_TIMES_MIN ? 0 : median(values, count);
}

/* Predicts all times; returns the sum of their relative errors. */
static double predict(struct bench *bench, double *values)
{
    double sum = 0;

    for (int64_t c = 0; c < bench->count; c++) {
        struct one_case *of = &bench->cases[c];
        const double unit = unit_of(bench, of, values);

        for (int i = 0; i < of->item_count; i++) {
            struct item *item = &of->items[i];
            const bool is_scaled = item->model > 0 && !(item->table_us > 0);
            const double tiles_us = is_scaled ? item->model * unit : item->table_us;

            of->is_scaled |= is_scaled && unit > 0;
            item->model_us = tiles_us > 0 ? tiles_us + bench->call_us : 0;
            if (item->model_us > 0)
                sum += fabs(item->model_us / item->us.value - 1);
        }
    }
    return sum;
}

/* What a call takes whatever its tiles, which tables leave out, is the one number for all cases
 * with which their times are least off. */
static void scale(struct bench *bench, double *values)
{
    double shortest = INFINITY, least = INFINITY, best = 0;

    for (int64_t c = 0; c < bench->count; c++)
        for (int i = 0; i < bench->cases[c].item_count; i++)
            shortest = fmin(shortest, bench->cases[c].items[i].us.value);
    for (int step = 0; step < CALL_STEPS; step++) {
        bench->call_us = shortest * step / CALL_STEPS;
        const double sum = predict(bench, values);
        if (sum < least) {
            least = sum;
            best = bench->call_us;
        }
    }
    bench->call_us = best;
    (void)predict(bench, values);
}

/* ---- results ---- */

static json_t *real_of(double value, double digits)
{
    return json_real(round(value * digits) / digits);
}

static json_t *item_object(const struct one_case *of, int index)
{
    const struct item *item = &of->items[index];
    json_t *object = json_object();
    char tile[16];

    text_format(tile, sizeof tile, "%dx%d", 64 * item->consumers, item->tile_n);
    (void)json_object_set_new(object, "tile", json_string(tile));
    (void)json_object_set_new(object, "apart", json_boolean(item->is_apart));
    (void)json_object_set_new(object, "chosen", json_boolean(index == 0));
    (void)json_object_set_new(object, "built_in", json_boolean(index == of->reference));
    (void)json_object_set_new(object, "model_us",
                              item->model_us > 0 ? real_of(item->model_us, 100) : json_null());
    (void)json_object_set_new(object, "us", real_of(item->us.value, 100));
    (void)json_object_set_new(object, "noise", real_of(item->us.noise / item->us.value, 1e4));
    return object;
}

static void write_case(FILE *to, const struct one_case *of)
{
    json_t *object = json_object(), *items = json_array();

    (void)json_object_set_new(object, "spec", json_string(of->spec_text));
    (void)json_object_set_new(object, "mask", json_string(of->mask_text));
    (void)json_object_set_new(object, "scaled", json_boolean(of->is_scaled));
    (void)json_object_set_new(object, "relative", real_of(of->relative, 1e4));
    if (of->reference >= 0) {
        (void)json_object_set_new(object, "gain", real_of(of->gain.value, 1e4));
        (void)json_object_set_new(object, "noise", real_of(of->gain.noise, 1e4));
    }
    for (int i = 0; i < of->item_count; i++)
        (void)json_array_append_new(items, item_object(of, i));
    (void)json_object_set_new(object, "items", items);
    (void)json_dumpf(object, to, JSON_REAL_PRECISION(9));
    (void)fputc('\n', to);
    json_decref(object);
}

/* Where the lines are from. */
static void write_head(const struct bench *bench, FILE *to)
{
    const struct choose_device device = context_choose_device(bench->context);
    struct tune_record record = { 0 };
    struct tune_gpu *gpu;
    json_t *object;

    must(tune_gpu_open(&gpu, bench->context, TIMEOUT_MS, &err), "open");
    tune_gpu_describe(gpu, &record);
    tune_gpu_close(gpu);
    object = json_pack("{s:s,s:s,s:i,s:s,s:s,s:I,s:I}", "device", record.facts.name, "driver",
                       record.driver, "power_limit_w", record.power_limit_w, "cost_table",
                       device.digest, "cost_source", ffa_cost_source_text(device.source), "seed",
                       (json_int_t)bench->options.seed, "laps", (json_int_t)bench->options.laps);
    (void)json_object_set_new(object, "call_us", real_of(bench->call_us, 100));
    (void)json_dumpf(object, to, 0);
    (void)fputc('\n', to);
    json_decref(object);
}

static void write_file(const struct bench *bench)
{
    FILE *to = bench->options.json ? fopen(bench->options.json, "w") : NULL;

    if (!bench->options.json)
        return;
    if (!to)
        refuse("--json names a file that cannot be written");
    write_head(bench, to);
    for (int64_t c = 0; c < bench->count; c++)
        write_case(to, &bench->cases[c]);
    if (fclose(to))
        refuse("--json names a file that cannot be written");
}

static void print_errors(const struct bench *bench, double *values)
{
    const struct one_case *worst = NULL;
    bool is_scaled = false;
    double most = -1;
    int64_t count = 0;

    for (int64_t c = 0; c < bench->count; c++) {
        const struct one_case *of = &bench->cases[c];

        is_scaled |= of->is_scaled;
        for (int i = 0; i < of->item_count; i++) {
            const struct item *item = &of->items[i];

            if (!(item->model_us > 0))
                continue;
            values[count] = fabs(item->model_us / item->us.value - 1);
            if (values[count] > most) {
                most = values[count];
                worst = of;
            }
            count++;
        }
    }
    if (worst)
        (void)printf("model    off by %.1f %% in the median of %lld times, %.1f %% at most: %s %s; "
                     "a call takes "
                     "%.1f us%s\n",
                     100 * median(values, count), (long long)count, 100 * most, worst->spec_text,
                     worst->mask_text, bench->call_us,
                     is_scaled ? "; times of some tables are scaled" : "");
}

static void print_choices(const struct bench *bench, double *values)
{
    const struct one_case *worst = &bench->cases[0];
    int64_t within = 0;

    for (int64_t c = 0; c < bench->count; c++) {
        const struct one_case *of = &bench->cases[c];

        values[c] = of->relative;
        within += of->relative <= 1.02;
        if (of->relative > worst->relative)
            worst = of;
    }
    (void)printf("choice   %.3f of the best time in the median, within 2 %% of it in %lld of %lld, "
                 "%.3f at most: %s %s\n",
                 median(values, bench->count), (long long)within, (long long)bench->count,
                 worst->relative, worst->spec_text, worst->mask_text);
}

static void print_gains(const struct bench *bench, double *values)
{
    const struct one_case *worst = &bench->cases[0];
    int64_t others = 0;

    for (int64_t c = 0; c < bench->count; c++) {
        const struct one_case *of = &bench->cases[c];

        values[c] = of->gain.value;
        if (of->gain.value < worst->gain.value)
            worst = of;
        if (of->reference > 0) {
            others++;
            (void)printf("  %-34s %-44s %+7.2f%% +- %.2f%%\n", of->spec_text, of->mask_text,
                         100 * of->gain.value, 100 * of->gain.noise);
        }
    }
    (void)printf("gain     %+.2f %% over the built-in tables in the median, %+.2f %% +- %.2f %% at "
                 "least; %lld of %lld choices are others\n",
                 100 * median(values, bench->count), 100 * worst->gain.value,
                 100 * worst->gain.noise, (long long)others, (long long)bench->count);
}

int main(int argc, char **argv)
{
    struct bench bench = { .options = read_options(argc, argv) };
    uint64_t state = (uint64_t)bench.options.seed;
    double *values;

    bench.context = open_context(bench.options.cost_tables ? bench.options.cost_tables : "none");
    if (bench.options.cost_tables)
        bench.built_in = open_context("none");
    bench.cases = mem_array((size_t)bench.options.cases, sizeof *bench.cases);
    values = mem_array((size_t)bench.options.cases * ITEMS_MAX, sizeof *values);
    if (!bench.cases || !values)
        refuse("no memory");
    for (; bench.count < bench.options.cases; bench.count++)
        run_case(&bench, &bench.cases[bench.count], &state);
    scale(&bench, values);
    write_file(&bench);
    print_errors(&bench, values);
    print_choices(&bench, values);
    if (bench.built_in)
        print_gains(&bench, values);
    mem_free(bench.cases);
    mem_free(values);
    ffa_close(bench.built_in);
    ffa_close(bench.context);
    return 0;
}
