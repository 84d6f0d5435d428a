/* SPDX-License-Identifier: Apache-2.0
 *
 * Run a fuzz target without libFuzzer: replay the files of a corpus, then mutations of them.
 *
 *   fuzz_NAME CORPUS_DIR [ITERATIONS [SEED [ONLY]]]
 *
 * Every iteration has its own generator, so the iteration that a crash names can be run alone:
 * fuzz_NAME CORPUS_DIR 0 SEED ONLY, which also prints the input. With clang, a target can be linked
 * with -fsanitize=fuzzer instead of this file.
 */
#include "fuzz/fuzz.h"
#include "support/rng.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILES_MAX = 256, INPUT_MAX = 8192, NAME_MAX_BYTES = 1024 };

struct input {
    uint8_t bytes[INPUT_MAX];
    size_t count;
};

static char names[FILES_MAX][NAME_MAX_BYTES];
static struct input files[FILES_MAX];
static int file_count;

/* What is running, for the message of a crash: an iteration, or, where negative, a file. */
static volatile int64_t now_iteration;
static volatile uint64_t now_seed;

/* The sanitizers abort, so that the handler below prints how to replay the crash. */
const char *__asan_default_options(void);
const char *__ubsan_default_options(void);

const char *__asan_default_options(void)
{
    return "abort_on_error=1";
}

const char *__ubsan_default_options(void)
{
    return "abort_on_error=1:print_stacktrace=1";
}

static void on_crash(int number)
{
    char line[NAME_MAX_BYTES + 64];
    int bytes;

    if (now_iteration < 0)
        bytes = snprintf(line, sizeof line, "fuzz: crashed on %s\n", names[-1 - now_iteration]);
    else
        bytes = snprintf(line, sizeof line, "fuzz: crashed; replay with: CORPUS_DIR 0 %llu %lld\n",
                         (unsigned long long)now_seed, (long long)now_iteration);
    (void)!write(STDERR_FILENO, line, (size_t)bytes);
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static int name_compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Load the files in the order of their names, because the order of readdir differs between
 * machines. */
static int corpus_load(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;

    if (!dir) {
        perror(folder);
        return 1;
    }
    while ((entry = readdir(dir)) && file_count < FILES_MAX)
        if (entry->d_name[0] != '.')
            (void)snprintf(names[file_count++], NAME_MAX_BYTES, "%s/%s", folder, entry->d_name);
    (void)closedir(dir);
    qsort(names, (size_t)file_count, sizeof *names, name_compare);
    for (int i = 0; i < file_count; i++) {
        FILE *file = fopen(names[i], "rb");

        if (!file) {
            perror(names[i]);
            return 1;
        }
        files[i].count = fread(files[i].bytes, 1, INPUT_MAX, file);
        (void)fclose(file);
    }
    return file_count == 0;
}

/* ---- mutation ---- */

static size_t draw(struct rng *rng, size_t below)
{
    return below ? (size_t)(rng_next(rng) % below) : 0;
}

/* Replace `gone` bytes at `at` with `count` others. */
static void splice(struct input *input, size_t at, size_t gone, const uint8_t *bytes, size_t count)
{
    uint8_t copy[INPUT_MAX];

    if (input->count - gone + count > INPUT_MAX)
        return;
    memcpy(copy, bytes, count); /* `bytes` may point into the input */
    memmove(input->bytes + at + count, input->bytes + at + gone, input->count - at - gone);
    memcpy(input->bytes + at, copy, count);
    input->count += count - gone;
}

static bool is_digit(uint8_t byte)
{
    return '0' <= byte && byte <= '9';
}

/* Replace one number with another, which leaves most inputs well-formed. */
static void mutate_number(struct input *input, struct rng *rng)
{
    size_t at = draw(rng, input->count + 1), end;
    char number[24];

    while (at < input->count && !is_digit(input->bytes[at]))
        at++;
    for (end = at; end < input->count && is_digit(input->bytes[end]);)
        end++;
    (void)snprintf(number, sizeof number, "%d", (int)draw(rng, draw(rng, 2) ? 100 : 12));
    if (at < input->count)
        splice(input, at, end - at, (const uint8_t *)number, strlen(number));
}

static void mutate(struct input *input, struct rng *rng)
{
    static const char plain[] = "0123456789-,:/=*x@[]{}\"ab \n";
    static const char *const numbers[] = { "0",
                                           "1",
                                           "-1",
                                           "2",
                                           "127",
                                           "128",
                                           "2147483647",
                                           "2147483648",
                                           "4294967296",
                                           "9223372036854775807",
                                           "18446744073709551616" };
    const struct input *other = &files[draw(rng, (size_t)file_count)];
    size_t at = draw(rng, input->count + 1);
    size_t gone = draw(rng, input->count - at < 8 ? input->count - at + 1 : 8);
    size_t from = draw(rng, other->count + 1);
    size_t length = draw(rng, other->count - from + 1);
    const char *number = numbers[draw(rng, sizeof numbers / sizeof *numbers)];
    uint8_t byte = (uint8_t)rng_next(rng);

    switch (draw(rng, 14)) {
    case 0:
        if (at < input->count)
            input->bytes[at] ^= (uint8_t)(1u << draw(rng, 8));
        break;
    case 1:
        byte = (uint8_t)plain[draw(rng, sizeof plain - 1)];
        splice(input, at, at < input->count, &byte, 1);
        break;
    case 2:
        splice(input, at, 0, &byte, 1);
        break;
    case 3:
        splice(input, at, gone, (const uint8_t *)number, strlen(number));
        break;
    case 4:
        splice(input, at, gone, other->bytes, 0);
        break;
    case 5:
        splice(input, at, gone, other->bytes + from, length);
        break;
    case 6:
        splice(input, at, 0, input->bytes + at, draw(rng, input->count - at + 1));
        break;
    default:
        mutate_number(input, rng);
    }
}

static void input_draw(struct input *out, uint64_t seed, int64_t iteration)
{
    struct rng rng = { seed * 1000003u + (uint64_t)iteration };
    size_t count;

    *out = files[draw(&rng, (size_t)file_count)];
    count = 1 + draw(&rng, 1 + draw(&rng, 6)); /* mutations: most often one */
    for (size_t i = 0; i < count; i++)
        mutate(out, &rng);
}

int main(int argc, char **argv)
{
    static struct input input;
    int64_t iterations = argc > 2 ? strtoll(argv[2], NULL, 10) : 10000;
    int64_t first = argc > 4 ? strtoll(argv[4], NULL, 10) : 0;

    now_seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    if (argc < 2 || corpus_load(argv[1])) {
        fprintf(stderr, "usage: %s CORPUS_DIR [ITERATIONS [SEED [ONLY]]]\n", argv[0]);
        return 2;
    }
    (void)signal(SIGABRT, on_crash);
    (void)signal(SIGSEGV, on_crash);
    for (int i = 0; i < file_count; i++) {
        now_iteration = -1 - i;
        (void)LLVMFuzzerTestOneInput(files[i].bytes, files[i].count);
    }
    if (argc > 4) {
        input_draw(&input, now_seed, first);
        (void)fwrite(input.bytes, 1, input.count, stdout);
        (void)fflush(stdout);
        iterations = 1;
    }
    for (int64_t i = first; i < first + iterations; i++) {
        now_iteration = i;
        input_draw(&input, now_seed, i);
        (void)LLVMFuzzerTestOneInput(input.bytes, input.count);
    }
    fprintf(stderr, "fuzz: %d files, %lld mutations\n", file_count, (long long)iterations);
    return 0;
}
