/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: any bytes as tuning sessions. They are refused with a message, or read, and then
 * written and read again to the same text; and what was read can be fitted, whatever was measured.
 */
#include "choose/cost_table_json.h"
#include "fuzz/fuzz.h"
#include "tune/tune_report.h"

#include <math.h>
#include <stdio.h>

static void require(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "fuzz_tune_samples: %s\n", what);
    abort();
}

/* The time of a fit follows from the masks: only those of the corpus are fitted. */
static bool has_known_masks(const struct tune_record *records, int32_t count)
{
    static const char *const known[] = { "causal:2048", "varlen-causal:300*8", "full:1024",
                                         "full:1x4096" };

    for (int32_t i = 0; i < count; i++)
        for (int32_t m = 0; m < records[i].mask_count; m++) {
            bool is_known = false;

            for (size_t k = 0; k < sizeof known / sizeof *known; k++)
                is_known |= !strcmp(records[i].masks[m], known[k]);
            if (!is_known)
                return false;
        }
    return true;
}

static void fit(const struct tune_record *records, int32_t count)
{
    ffa_error err = { FFA_OK, 0, "" };
    struct tune_fit found;
    char *text;

    if (tune_fit(&found, records, count, &err) != FFA_OK) {
        require(err.message[0] != '\0', "not fitted, without a reason");
        return;
    }
    for (int32_t i = 0; i < found.group_count; i++)
        require(isfinite(found.groups[i].gain) && isfinite(found.groups[i].noise),
                "a gain is no number");
    require(isfinite(found.orders.gain) && isfinite(found.orders.noise) &&
                isfinite(found.orders.best_gain),
            "a gain of orders is no number");
    require(cost_table_write(&found.table, &text, &err) == FFA_OK, err.message);
    mem_free(text);
    require(tune_report_text(&found, records, count, &text, &err) == FFA_OK, err.message);
    mem_free(text);
    tune_fit_finish(&found);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct tune_record *records, *again;
    char *text, *text_again;
    int32_t count, count_again;
    ffa_error err = { FFA_OK, 0, "" };

    if (tune_samples_read(&records, &count, (const char *)data, bytes, &err) != FFA_OK) {
        require(err.message[0] != '\0', "refused without a reason");
        require(!records && !count, "refused, but there are sessions");
        return 0;
    }
    require(tune_samples_text(records, count, &text, &err) == FFA_OK, "sessions are not written");
    require(tune_samples_read(&again, &count_again, text, strlen(text), &err) == FFA_OK,
            err.message);
    require(tune_samples_text(again, count_again, &text_again, &err) == FFA_OK,
            "they are not written again");
    require(!strcmp(text, text_again), "sessions change when they are written");
    if (count && has_known_masks(records, count))
        fit(records, count);
    tune_records_finish(records, count);
    tune_records_finish(again, count_again);
    mem_free(text);
    mem_free(text_again);
    return 0;
}
