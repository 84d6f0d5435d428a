/* SPDX-License-Identifier: Apache-2.0 */
#include "support/parallel_cases.h"

#include "support/mask_cases.h"

#include <stdio.h>
#include <stdlib.h>

json_t *parallel_cases_load(void)
{
    json_error_t error;
    json_t *root = json_load_file(FFA_TEST_SOURCE_DIR "/tests/data/parallel.json", 0, &error);

    if (!root) {
        fprintf(stderr, "parallel.json: line %d: %s\n", error.line, error.text);
        abort();
    }
    return root;
}

int64_t parallel_integers(const json_t *array, int64_t *out, int64_t max)
{
    const int64_t count = (int64_t)json_array_size(array);

    if (!json_is_array(array) || count > max) {
        fprintf(stderr, "parallel.json: no array, or more than %lld integers\n", (long long)max);
        abort();
    }
    for (int64_t i = 0; i < count; i++)
        out[i] = (int64_t)json_number_value(json_array_get(array, (size_t)i));
    return count;
}

ffa_slice parallel_case_slice(const json_t *entry, size_t i)
{
    const json_t *types = json_object_get(entry, "types");
    const json_t *type = types ? json_array_get(types, i) : json_object_get(entry, "type");
    int64_t q[2], k[2];

    (void)parallel_integers(json_array_get(json_object_get(entry, "q"), i), q, 2);
    (void)parallel_integers(json_array_get(json_object_get(entry, "k"), i), k, 2);
    return (ffa_slice){ q[0], q[1], k[0], k[1], (int32_t)json_integer_value(type), 0 };
}

ffa_mask *parallel_case_mask(const json_t *entry, int64_t tokens)
{
    const size_t count = json_array_size(json_object_get(entry, "q"));
    ffa_slice *slices = calloc(count, sizeof *slices);
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask;

    if (tokens == 0)
        tokens = (int64_t)json_integer_value(json_object_get(entry, "seqlen"));
    for (size_t i = 0; i < count; i++) {
        slices[i] = parallel_case_slice(entry, i);
        if (json_object_get(entry, "seqlen"))
            continue;
        tokens = slices[i].q_end > tokens ? slices[i].q_end : tokens;
        tokens = slices[i].k_end > tokens ? slices[i].k_end : tokens;
    }
    if (ffa_mask_create(&mask, &(ffa_mask_shape){ tokens, tokens }, slices, (int64_t)count, &err)) {
        fprintf(stderr, "parallel.json: %s\n", err.message);
        abort();
    }
    free(slices);
    return mask;
}

ffa_mask *parallel_random_mask(struct rng *rng, int64_t tokens, int64_t slices_max)
{
    struct mask_case test = mask_case_random(rng, tokens, slices_max);
    const ffa_mask_shape shape = { tokens, tokens };
    ffa_error err = { FFA_OK, 0, "" };
    ffa_mask *mask;

    if (ffa_mask_create(&mask, &shape, test.slices, test.count, &err)) {
        fprintf(stderr, "random mask: %s\n", err.message);
        abort();
    }
    free(test.slices);
    return mask;
}
