/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading calibrations: JSON as bench_parallel writes it (tests/schema/calibration.json).
 *
 * Invariant: a file is read whole or refused with the place of what is wrong in it, an unknown
 * member too, as a misspelt rate would be one that was not measured. The ranges of numbers are the
 * library's to check: a file is tried on a model of all defaults before it is accepted.
 */
#include "cli/calibration_file.h"

#include "cli/file.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { SCHEMA = 1, CHUNKS_A_RANK = 8 };

/* A member of an object: a whole number. */
struct field {
    const char *name;
    int64_t *to;
};

/* Where we are in the file. */
struct place {
    const char *path, *list; /* list: NULL at the root */
    size_t index;
};

static ffa_status wrong(const struct place *at, const char *name, const char *what, ffa_error *err)
{
    if (!at->list)
        return cli_error(err, FFA_INVALID, 0, "calibration '%.160s': '%s' %s", at->path, name,
                         what);
    return cli_error(err, FFA_INVALID, 0, "calibration '%.160s': '%s' of %s[%zu] %s", at->path,
                     name, at->list, at->index, what);
}

static bool is_one_of(const char *name, const char *const *names)
{
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}

static ffa_status check_members(const struct place *at, json_t *object, const char *const *known,
                                ffa_error *err)
{
    const char *name;
    json_t *value;

    json_object_foreach(object, name, value)
    {
        if (!is_one_of(name, known))
            return wrong(at, name, "is not known", err);
    }
    return FFA_OK;
}

static ffa_status read_number(const struct place *at, json_t *object, const char *name,
                              int64_t limit, int64_t *out, ffa_error *err)
{
    const json_t *value = json_object_get(object, name);

    if (!json_is_integer(value))
        return wrong(at, name, value ? "is not a whole number" : "is missing", err);
    *out = (int64_t)json_integer_value(value);
    if (*out < 0 || *out > limit)
        return wrong(at, name, *out < 0 ? "is below 0" : "is too large", err);
    return FFA_OK;
}

static ffa_status read_link(const struct place *at, json_t *object, void *out, ffa_error *err)
{
    static const char *const known[] = { "range_bytes", "mbytes_s", NULL };
    ffa_link_rate *rate = (ffa_link_rate *)out + at->index;
    ffa_status rc = check_members(at, object, known, err);

    if (rc == FFA_OK)
        rc = read_number(at, object, known[0], INT64_MAX, &rate->range_bytes, err);
    if (rc == FFA_OK)
        rc = read_number(at, object, known[1], INT64_MAX, &rate->mbytes_s, err);
    return rc;
}

static ffa_status read_kernel(const struct place *at, json_t *object, void *out, ffa_error *err)
{
    static const char *const known[] = { "head_dim", "head_dim_v",   "tile_m", "tile_n",
                                         "gflops",   "begin_tokens", "pass",   NULL };
    enum { NUMBERS = 6, BEGIN = 5, PASS = 6 };
    ffa_kernel_rate *rate = (ffa_kernel_rate *)out + at->index;
    const char *pass = json_string_value(json_object_get(object, known[PASS]));
    int64_t numbers[NUMBERS] = { 0 };
    ffa_status rc = check_members(at, object, known, err);

    for (int i = 0; i < NUMBERS && rc == FFA_OK; i++)
        if (i != BEGIN || json_object_get(object, known[i])) /* older files have none */
            rc =
                read_number(at, object, known[i], i == 4 ? INT64_MAX : INT32_MAX, &numbers[i], err);
    if (rc == FFA_OK && (!pass || (strcmp(pass, "forward") != 0 && strcmp(pass, "backward") != 0)))
        rc = wrong(at, known[PASS], "is not forward or backward", err);
    if (rc == FFA_OK)
        *rate = (ffa_kernel_rate){ .is_backward = strcmp(pass, "backward") == 0,
                                   .head_dim = (int32_t)numbers[0],
                                   .head_dim_v = (int32_t)numbers[1],
                                   .tile_m = (int32_t)numbers[2],
                                   .tile_n = (int32_t)numbers[3],
                                   .begin_tokens = (int32_t)numbers[BEGIN],
                                   .gflops = numbers[4] };
    return rc;
}

/* A list of objects of `bytes` each. *out: the caller's, to be freed. */
static ffa_status read_list(const char *path, json_t *root, const char *name, size_t bytes,
                            ffa_status (*read)(const struct place *, json_t *, void *, ffa_error *),
                            void **out, int32_t *count, ffa_error *err)
{
    const struct place outside = { .path = path };
    json_t *list = json_object_get(root, name);
    ffa_status rc = FFA_OK;

    if (!json_is_array(list))
        return wrong(&outside, name, list ? "is not a list" : "is missing", err);
    if (json_array_size(list) > 4096)
        return wrong(&outside, name, "has more than 4096 elements", err);
    *count = (int32_t)json_array_size(list);
    *out = calloc((size_t)*count + 1, bytes);
    if (!*out)
        return cli_error(err, FFA_NOMEM, 0, "no memory for a calibration");
    for (size_t i = 0; i < (size_t)*count && rc == FFA_OK; i++) {
        const struct place at = { path, name, i };
        json_t *element = json_array_get(list, i);

        if (!json_is_object(element))
            return wrong(&at, "element", "is not an object", err);
        rc = read(&at, element, *out, err);
    }
    return rc;
}

static ffa_status read_root(struct calibration *out, const char *path, json_t *root, ffa_error *err)
{
    static const char *const known[] = { "schema",    "device", "gpus",    "node_latency_ns",
                                         "launch_ns", "links",  "kernels", "window_mbytes_s",
                                         "sms",       "source", NULL };
    const struct place at = { .path = path };
    const char *device = json_string_value(json_object_get(root, "device"));
    int64_t schema = 0, gpus = 0, sms = 0;
    ffa_status rc;

    if (!json_is_object(root))
        return cli_error(err, FFA_INVALID, 0, "calibration '%.160s' is not an object", path);
    rc = check_members(&at, root, known, err);
    if (rc == FFA_OK)
        rc = read_number(&at, root, "schema", INT32_MAX, &schema, err);
    if (rc == FFA_OK && schema != SCHEMA)
        rc = wrong(&at, "schema", "is not 1, the one this version reads", err);
    if (rc == FFA_OK && !device)
        rc = wrong(&at, "device", "is not a text", err);
    if (rc == FFA_OK)
        rc = read_number(&at, root, "gpus", 4096, &gpus, err);
    if (rc == FFA_OK)
        rc = read_number(&at, root, "node_latency_ns", INT64_MAX, &out->rates.node_latency_ns, err);
    if (rc == FFA_OK)
        rc = read_number(&at, root, "launch_ns", INT64_MAX, &out->rates.launch_ns, err);
    if (rc == FFA_OK && json_object_get(root, "window_mbytes_s"))
        rc = read_number(&at, root, "window_mbytes_s", INT64_MAX, &out->rates.window_mbytes_s, err);
    if (rc == FFA_OK && json_object_get(root, "sms"))
        rc = read_number(&at, root, "sms", INT32_MAX, &sms, err);
    if (rc == FFA_OK && json_object_get(root, "source") &&
        !json_is_string(json_object_get(root, "source")))
        rc = wrong(&at, "source", "is not a text", err);
    if (rc == FFA_OK)
        rc = read_list(path, root, "links", sizeof *out->links, read_link, (void **)&out->links,
                       &out->rates.link_count, err);
    if (rc == FFA_OK)
        rc = read_list(path, root, "kernels", sizeof *out->kernels, read_kernel,
                       (void **)&out->kernels, &out->rates.kernel_count, err);
    if (rc != FFA_OK)
        return rc;
    out->gpus = (int32_t)gpus;
    out->rates.sms = (int32_t)sms;
    (void)snprintf(out->device, sizeof out->device, "%s", device);
    out->rates.links = out->links;
    out->rates.kernels = out->kernels;
    return FFA_OK;
}

static ffa_status try_out(const struct calibration *calibration, const char *path, ffa_error *err)
{
    ffa_parallel_plan_opts opts = FFA_PARALLEL_PLAN_OPTS_INIT;
    ffa_error why = { FFA_OK, 0, "" };
    const ffa_status rc = ffa_parallel_plan_opts_calibrate(&opts, &calibration->rates, 1, &why);

    return rc == FFA_OK ? FFA_OK
                        : cli_error(err, rc, 0, "calibration '%.160s': %.200s", path, why.message);
}

ffa_status calibration_read(struct calibration *out, const char *path, ffa_error *err)
{
    json_error_t where;
    ffa_status rc;
    FILE *file;
    json_t *root;

    *out = (struct calibration){ .rates = FFA_CALIBRATION_INIT };
    file = file_open(path);
    if (!file)
        return cli_error(err, FFA_IO, errno, "calibration '%.160s': %s", path, strerror(errno));
    root = json_loadf(file, JSON_REJECT_DUPLICATES, &where);
    (void)fclose(file);
    if (!root)
        return cli_error(err, FFA_INVALID, 0, "calibration '%.160s', line %d: %s", path, where.line,
                         where.text);
    rc = read_root(out, path, root, err);
    json_decref(root);
    return rc == FFA_OK ? try_out(out, path, err) : rc;
}

void calibration_finish(struct calibration *calibration)
{
    free(calibration->links);
    free(calibration->kernels);
    *calibration = (struct calibration){ .links = NULL };
}

ffa_status calibration_apply(const struct calibration *calibration, ffa_parallel_plan_opts *opts,
                             int64_t tokens, int64_t ranks, int64_t chunk, ffa_error *err)
{
    const int64_t usual = (tokens + CHUNKS_A_RANK * ranks - 1) / (CHUNKS_A_RANK * ranks);
    int64_t rows = chunk > 0 && chunk < usual ? chunk : usual;

    if (!calibration->rates.struct_size)
        return FFA_OK;
    rows = rows < 1 ? 1 : rows;
    return ffa_parallel_plan_opts_calibrate(opts, &calibration->rates, rows, err);
}
