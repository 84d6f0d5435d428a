/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of `ffa run`: what one option writes, no other may write, nor read. Files are compared,
 * not names, as a file has many.
 */
#include "cli/run_files.h"

#include "cli/file.h"

#include <stdio.h>
#include <string.h>

enum { USES_MAX = RUN_TENSORS + 3 };

/* A file that an option names. */
struct use {
    const char *option, *path;
    bool is_written;
};

static int list_uses(struct use *uses, const struct run_options *o)
{
    static const enum run_tensor inputs[] = { RUN_Q, RUN_K, RUN_V, RUN_DOUT };
    static const enum run_tensor outputs[] = { RUN_OUT, RUN_LSE, RUN_DQ, RUN_DK, RUN_DV };
    int count = 0;

    for (int i = 0; i < CLI_COUNT(inputs); i++)
        uses[count++] = (struct use){ run_tensor_name(inputs[i]), o->files[inputs[i]], false };
    uses[count++] = (struct use){ "calibration", o->calibration, false };
    for (int i = 0; i < CLI_COUNT(outputs); i++)
        uses[count++] = (struct use){ run_tensor_name(outputs[i]), o->files[outputs[i]], true };
    uses[count++] = (struct use){ "timeline", o->timeline, true };
    uses[count++] = (struct use){ "trace", o->trace, true };
    return count;
}

/* Of a mask, which names its files by '@': each is read. In an expression a name ends with ';' or
 * ')'. */
static int check_mask_files(const struct cli *cli, const char *mask, const struct use *written)
{
    const char *at = mask ? strchr(mask, '@') : NULL;

    for (; at; at = strchr(at, '@')) {
        const size_t bytes = ++at == mask + 1 ? strlen(at) : strcspn(at, ";)");
        char path[4096];

        (void)snprintf(path, sizeof path, "%.*s", (int)bytes, at);
        if (bytes < sizeof path && file_is_same(path, written->path))
            return cli_fail_text(cli, FFA_INVALID, "--mask and --%s are one file, '%s'",
                                 written->option, path);
    }
    return CLI_PARSE_GO;
}

int run_files_check(const struct cli *cli, const struct run_options *options)
{
    struct use uses[USES_MAX];
    const int count = list_uses(uses, options);
    int status = CLI_PARSE_GO;

    for (int i = 0; i < count && status == CLI_PARSE_GO; i++) {
        if (!uses[i].path || !uses[i].is_written)
            continue;
        for (int k = 0; k < i; k++)
            if (uses[k].path && file_is_same(uses[i].path, uses[k].path))
                return cli_fail_text(cli, FFA_INVALID, "--%s and --%s are one file, '%s'",
                                     uses[k].option, uses[i].option, uses[k].path);
        status = check_mask_files(cli, options->mask, &uses[i]);
    }
    return status;
}
