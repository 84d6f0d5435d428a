/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks: texts and JSON that are nearly masks. A mutant is a mask or is refused with a sentence and
 * the status of a wrong input; three commands must agree on which of the two it is.
 */
#include "faults/faults.h"
#include "support/tmpdir.h"

#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = 512 };

static const char *const texts[] = {
    "causal:64",
    "full:32x48",
    "window:256,left=16,right=0",
    "block-causal:64,128/block=16",
    "varlen-causal:10,30,24",
    "varlen-causal:7*20",
    "shared-question:8*4,3",
};

static const char *const json[] = {
    "{\"seqlen_q\": 8, \"seqlen_k\": 8, \"slices\": [[0, 8, 0, 8, \"causal\"], [4, 8, 0, 4, 0]]}",
    "{\"seqlen_q\": 8, \"seqlen_k\": 8, \"kv_heads\": [[[0, 8, 0, 8, \"full\"]], "
    "[[0, 4, 0, 4, \"bicausal\"]]]}",
};

static const char *const pieces[] = { "-1",  "0",  "9",       "99999", "2147483648", "1e9",
                                      "nan", ":",  ",",       "*",     "x",          "/",
                                      "=",   "[",  "]",       "{",     "}",          "\"",
                                      "\\",  "\n", "\x1b[2J", "\xff",  "causal",     "null" };

/* Cut, double, swap or put in, as many as one to four times. */
static void mutate(struct rng *rng, char text[TEXT_BYTES])
{
    for (int64_t n = rng_range(rng, 1, 4); n > 0; n--) {
        const size_t bytes = strlen(text);
        const size_t at = (size_t)rng_range(rng, 0, (int64_t)bytes);
        const size_t cut = (size_t)rng_range(rng, 0, 5);
        const char *piece = "";
        char rest[TEXT_BYTES];

        switch (rng_range(rng, 0, 3)) {
        case 0: /* cut bytes */
            break;
        case 1: /* a byte of any kind */
            if (at < bytes)
                text[at] = (char)rng_range(rng, 1, 255);
            continue;
        default: /* a piece, in place of some bytes or between them */
            piece = fault_draw(rng, pieces, sizeof pieces / sizeof *pieces);
            break;
        }
        (void)snprintf(rest, sizeof rest, "%s", at + cut < bytes ? text + at + cut : "");
        text[at] = '\0';
        (void)snprintf(text + at, TEXT_BYTES - at, "%s%s", piece, rest);
    }
}

static const char *ask(const struct faults *faults, const char *verb, const char *mask, int *status)
{
    const char *const argv[] = { faults->ffa, "mask", verb, mask, NULL };
    const struct fault_result result = fault_run(faults, &(struct fault_run){ .argv = argv });

    *status = result.status;
    return fault_check(&result, 0);
}

const char *mask_round(const struct faults *faults, struct rng *rng)
{
    const bool is_json = rng_range(rng, 0, 1) != 0;
    char text[TEXT_BYTES];
    const char *mask = text, *wrong;
    int check, area, show;

    (void)snprintf(text, sizeof text, "%s",
                   is_json ? fault_draw(rng, json, sizeof json / sizeof *json)
                           : fault_draw(rng, texts, sizeof texts / sizeof *texts));
    mutate(rng, text);
    if (is_json) {
        tmpdir_write(fault_path(faults, "mask.json"), text, strlen(text));
        mask = "@mask.json";
    }
    wrong = ask(faults, "check", mask, &check);
    if (!wrong)
        wrong = ask(faults, "area", mask, &area);
    if (!wrong)
        wrong = ask(faults, "show", mask, &show);
    /* check has a status for a mask with faults of its own; the others take it or refuse it. */
    if (!wrong && check == 2 && (area == 0 || show == 0))
        wrong = fault_say("check refuses what area (%d) or show (%d) takes", area, show);
    if (!wrong && check == 0 && (area != 0 || show != 0))
        wrong = fault_say("check takes what area (%d) or show (%d) refuses", area, show);
    return wrong ? fault_say("mask %s: %s", text, wrong) : NULL;
}
