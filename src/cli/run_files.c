/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of `ffa run`: what one option writes, no other may write, nor read. Files are compared,
 * not names, as a file has many.
 */
#include "cli/run_files.h"

#include "cli/file.h"

enum { USES_MAX = RUN_TENSORS + 4 };

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
    uses[count++] =
        (struct use){ "mask", o->mask && o->mask[0] == '@' ? o->mask + 1 : NULL, false };
    uses[count++] = (struct use){ "calibration", o->calibration, false };
    for (int i = 0; i < CLI_COUNT(outputs); i++)
        uses[count++] = (struct use){ run_tensor_name(outputs[i]), o->files[outputs[i]], true };
    uses[count++] = (struct use){ "timeline", o->timeline, true };
    uses[count++] = (struct use){ "trace", o->trace, true };
    return count;
}

int run_files_check(const struct cli *cli, const struct run_options *options)
{
    struct use uses[USES_MAX];
    const int count = list_uses(uses, options);

    for (int i = 0; i < count; i++)
        for (int k = 0; k < i; k++)
            if (uses[i].path && uses[k].path && uses[i].is_written &&
                file_is_same(uses[i].path, uses[k].path))
                return cli_fail_text(cli, FFA_INVALID, "--%s and --%s are one file, '%s'",
                                     uses[k].option, uses[i].option, uses[k].path);
    return CLI_PARSE_GO;
}
