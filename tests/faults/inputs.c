/* SPDX-License-Identifier: Apache-2.0
 *
 * Inputs: every option and operand of every command, as `ffa help --json` lists them, with values
 * that make no sense. A command does what it is asked or refuses it with a sentence, soon.
 */
#include "faults/faults.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const values[] = {
    "",
    " ",
    "-1",
    "0",
    "1",
    "7",
    "2147483648",
    "9223372036854775808",
    "99999999999999999999999",
    "1e999",
    "nan",
    "-inf",
    "0x10",
    "1,,2",
    "%s%n%s",
    "\x1b[31mred\x1b[0m",
    "a\nb",
    "\xff\xfe",
    "/",
    "/dev/null",
    "/dev/zero",
    "/proc/self/mem",
    "/nonexistent/x",
    "../../..",
    "s3://bucket/key",
    "file:x?mode=ro",
    "causal:",
    "causal:0",
    "full:2147483647x2147483647",
    "block-causal:2147483647/block=1",
    "shared-question:1*67108864,3",
    "varlen-causal:1*100000000",
    "window:10,left=-2",
    "@",
    "@/dev/zero",
    "-",
    "--",
    "--help",
};
enum { VALUES = sizeof values / sizeof *values };

/* One place in a command line for a value. */
struct slot {
    char command[64];
    char option[64]; /* "" for an operand */
};

static struct slot *slots;
static int64_t slot_count;

static void slot_add(const char *command, const char *option)
{
    struct slot *more = realloc(slots, (size_t)(slot_count + 1) * sizeof *slots);

    if (!more)
        abort();
    slots = more;
    (void)snprintf(slots[slot_count].command, sizeof slots->command, "%s", command);
    (void)snprintf(slots[slot_count].option, sizeof slots->option, "%s", option);
    slot_count++;
}

/* All of `ffa help --json`, through a file: it is longer than what fault_run keeps. */
static void slots_read(const struct faults *faults)
{
    char line[2048];
    FILE *help;
    json_t *root, *command, *option;
    size_t i, j;

    (void)snprintf(line, sizeof line, "'%s' help --json", faults->ffa);
    help = popen(line, "r");
    root = help ? json_loadf(help, 0, NULL) : NULL;
    if (help)
        (void)pclose(help);
    json_array_foreach(json_object_get(root, "commands"), i, command)
    {
        const char *name = json_string_value(json_object_get(command, "name"));

        slot_add(name, "");
        json_array_foreach(json_object_get(command, "options"), j, option)
            slot_add(name, json_string_value(json_object_get(option, "name")));
    }
    json_decref(root);
}

int64_t input_count(const struct faults *faults)
{
    if (!slots)
        slots_read(faults);
    return slot_count * VALUES;
}

/* What a command needs beside the slot to get as far as looking at it. */
static int operands_add(const struct faults *faults, const char **argv, int at,
                        const struct slot *slot)
{
    const char *const command = slot->command;
    const char *const masked[] = { "mask show", "mask check", "mask area" };

    for (size_t i = 0; i < sizeof masked / sizeof *masked; i++)
        if (strcmp(command, masked[i]) == 0)
            argv[at++] = "causal:64";
    if (strcmp(slot->option, "mask") != 0 &&
        (strcmp(command, "run") == 0 || strcmp(command, "plan") == 0 ||
         strcmp(command, "simulate") == 0)) {
        argv[at++] = "--mask";
        argv[at++] = "causal:64";
    }
    if (strcmp(command, "compile") == 0 || strcmp(command, "explain") == 0)
        argv[at++] = "attention_forward";
    if (strcmp(command, "warm") == 0)
        argv[at++] = "set.json";
    if ((strcmp(command, "warm") == 0 || strcmp(command, "compile") == 0) &&
        strcmp(slot->option, "nvrtc") != 0) {
        argv[at++] = "--nvrtc";
        argv[at++] = faults->nvrtc;
    }
    if (strcmp(command, "bundle import") == 0 || strcmp(command, "bundle inspect") == 0)
        argv[at++] = "store/kernels.ffadb";
    if (strcmp(slot->option, "ranks") != 0 &&
        (strcmp(command, "simulate") == 0 || strcmp(command, "plan") == 0)) {
        argv[at++] = "--ranks";
        argv[at++] = "4";
    }
    return at;
}

const char *input_round(const struct faults *faults, struct rng *rng)
{
    const struct slot *slot;
    const char *value, *argv[24], *wrong;
    char command[64], *rest = NULL, *word;
    int at = 0;
    struct fault_result result;

    if (input_count(faults) == 0)
        return "ffa help --json lists no options";
    slot = &slots[rng_range(rng, 0, slot_count - 1)];
    value = values[rng_range(rng, 0, VALUES - 1)];
    wrong = reference_store(faults, fault_path(faults, "store/kernels.ffadb"), 1);
    if (wrong)
        return wrong;
    (void)reference_manifest(faults);
    (void)snprintf(command, sizeof command, "%s", slot->command);
    argv[at++] = faults->ffa;
    for (word = strtok_r(command, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[at++] = word;
    if (slot->option[0]) {
        static char option[80];

        at = operands_add(faults, argv, at, slot);
        (void)snprintf(option, sizeof option, "--%s", slot->option);
        argv[at++] = option;
    }
    argv[at++] = value;
    argv[at] = NULL;
    result = fault_run(faults, &(struct fault_run){ .argv = argv, .limit_ms = 120000 });
    wrong = fault_check(&result, 0);
    return wrong ? fault_say("ffa %s %s%s \"%s\": %s", slot->command, slot->option[0] ? "--" : "",
                             slot->option, value, wrong)
                 : NULL;
}
