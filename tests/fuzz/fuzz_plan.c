/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: any bytes as a saved rank plan. It is refused with a message, or loaded, and then it
 * can be saved and loaded again with the same digest. Long sequences are skipped, because planning
 * them takes long.
 */
#include "fuzz/fuzz.h"
#include "parallel/plan/rank_plan.h"

#include <stdio.h>

enum { TOKENS_AT = 8 * (1 + 1 + 3 + 22), TOKENS_HERE = 4096 };

static void require(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "fuzz_plan: %s\n", what);
    abort();
}

static bool is_long(const uint8_t *data, size_t bytes)
{
    int64_t tokens[2];

    if (bytes < TOKENS_AT + sizeof tokens)
        return false;
    memcpy(tokens, data + TOKENS_AT, sizeof tokens);
    return tokens[0] > TOKENS_HERE || tokens[1] > TOKENS_HERE;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    ffa_error err = { FFA_OK, 0, "" };
    ffa_parallel_plan *plan, *again;
    void *saved;
    size_t count;

    if (is_long(data, bytes))
        return 0;
    if (ffa_parallel_plan_load(&plan, data, bytes, &err) != FFA_OK) {
        require(err.message[0] != '\0', "refused without a reason");
        require(plan == NULL, "refused, but there is a plan");
        return 0;
    }
    require(ffa_parallel_plan_save(plan, &saved, &count, &err) == FFA_OK, "a plan is not saved");
    require(ffa_parallel_plan_load(&again, saved, count, &err) == FFA_OK,
            "a saved plan is not loaded");
    require(!strcmp(plan->digest, again->digest), "a plan changes when it is saved");
    ffa_parallel_plan_destroy(again);
    ffa_parallel_plan_destroy(plan);
    ffa_free(saved);
    return 0;
}
