/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa: the table of commands, and finding one in it.
 *
 * A row is a command: its name of one or two words, what runs it, its summary and its examples. The
 * usage, the reference, the man pages and the completion list the rows that have a summary.
 */
#include "cli/cli.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

/* clang-format off */
static const struct cli_command commands[] = {
    { "help", cmd_help, false, "[COMMAND]",
      "Show this list or a command's help, or print the reference, man pages or shell completion.",
      "ffa help mask show\n"
      "ffa help --format markdown > docs/command.md\n"
      "ffa help --format man --to /usr/local/share/man/man1\n"
      "source <(ffa help --format bash)\n"
      "ffa help --json\n" },
    { "doctor", cmd_doctor, true, "",
      "Report versions, devices, the compiler, the store, and what would be used and why.",
      "ffa doctor\n"
      "ffa doctor --json\n" },
    { "mask show", cmd_mask_show, false, "SPEC",
      "Draw a mask: '#' where all cells of a group are attended, '+' some, '.' none.",
      "ffa mask show causal:4096 --columns 32\n"
      "ffa mask show varlen-causal:1000,3000,96 --svg mask.svg\n"
      "ffa mask show 'concat(causal:100;window:64,left=16,right=0)' --columns 32\n" },
    { "mask check", cmd_mask_check, false, "SPEC",
      "Check a mask and report its area, empty rows, and cells covered twice.",
      "ffa mask check @mask.json\n"
      "ffa mask check block-causal:4096,8192/block=2048 --json\n"
      "ffa mask check 'union(window:64,left=8,right=0;shift(full:16;k=4,size=64))'\n" },
    { "mask area", cmd_mask_area, false, "SPEC",
      "Count the attended cells of a mask, exactly.",
      "ffa mask area window:16384,left=1024,right=0\n"
      "ffa mask area full:100x200 --json\n"
      "ffa mask area 'crop(causal:4096;q=1024:2048)'\n" },
    { "plan", cmd_plan, false, "",
      "Plan context-parallel attention: who computes what, what each rank receives, in which stages.",
      "ffa plan --mask causal:65536 --ranks 8\n"
      "ffa plan --mask varlen-causal:9000,30000,26536 --ranks 8 --svg plan.svg\n"
      "ffa plan --mask block-causal:65536*8/block=2048 --ranks 64 --ranks-per-node 8 --rank 5 --json\n"
      "ffa plan --mask full:128x65536 --ranks 8 --keys dispatched --moves auto\n" },
    { "compile", cmd_compile, true, "TEMPLATE [NAME=VALUE...]",
      "Look a kernel up or compile it, without a device: registers, shared memory, spills.",
      "ffa compile --list\n"
      "ffa compile attention_forward head_dim=128 dtype=bf16 --arch sm_90a --json\n"
      "ffa compile attention_forward head_dim=64 --arch sm_90a --force --time\n"
      "ffa compile attention_forward --arch sm_90a --emit ptx forward.ptx\n"
      "ffa compile attention_forward --arch sm_90a --print --templates templates\n"
      "FFA_JIT=never ffa compile attention_forward --arch sm_90a --store none --bundle b.ffadb\n" },
    { "explain", cmd_explain, true, "TEMPLATE [NAME=VALUE...]",
      "Say what a request comes to, which layer answers it, or what the nearest entry has instead.",
      "ffa explain attention_forward head_dim=128 dtype=bf16 --arch sm_90a\n"
      "ffa explain attention_forward kv_slots=1 --arch sm_90a --json\n" },
    { "warm", cmd_warm, true, "[MANIFEST|-]",
      "Compile a set of kernels into the store, in isolated worker processes.",
      "ffa warm --preset training --arch sm_90a --jobs 2\n"
      "ffa warm set.json --dry-run\n"
      "ffa warm --from-misses /mnt/job/kernels.ffadb    # what a job missed\n"
      "ffa warm --preset all --keep-going --timeout 60 --mem-per-job 1G --json\n"
      "ffa warm --spec head_dim=128,dtype=bf16,heads=32:8,backward,deterministic --list\n"
      "srun ffa warm --preset training --shard auto    # each task its shard\n" },
    { "kernel-worker", cmd_kernel_worker, false, "", NULL, "" },
    { "tune run", cmd_tune_run, true, "SPEC...",
      "Measure every tile of the specs' forward kernels, and orders of backward passes, on this GPU.",
      "ffa tune run head_dim=128,heads=64:8 --session h200.ffatune --dry-run\n"
      "ffa tune run head_dim=128,heads=64:8 --session h200.ffatune --budget 10m\n"
      "ffa tune run head_dim=128,heads=64:8 --session h200.ffatune --resume\n"
      "ffa tune run head_dim=128,heads=64:8,backward --session h200.ffatune --budget 5m\n"
      "ffa tune run head_dim=128,heads=16:16 head_dim=192:128,heads=32:32 --compile-only --device 'NVIDIA H200'\n"
      "ffa tune run head_dim=64,heads=64:8 --session all.ffatune --devices 0,1,2,3\n" },
    { "tune show", cmd_tune_show, false, "FILE...",
      "Show tuning sessions, the gain of each mask with its noise, and the costs that fit them.",
      "ffa tune show h200.ffatune\n"
      "ffa tune show node1.ffatune node2.ffatune --json\n" },
    { "tune merge", cmd_tune_merge, false, "OUT FILE...",
      "Add the sessions of several machines of one model to the file OUT.",
      "ffa tune merge all.ffatune node1.ffatune node2.ffatune\n" },
    { "tune export", cmd_tune_export, false, "FILE FOLDER",
      "Write the cost table that fits the sessions, and all samples, to FOLDER.",
      "ffa tune export h200.ffatune /srv/cost-tables\n" },
    { "tune import", cmd_tune_import, false, "FILE SAMPLES...",
      "Add the sessions of exported samples to a file.",
      "ffa tune import h200.ffatune /srv/cost-tables/sessions-*.samples\n" },
    { "run", cmd_run, true, "",
      "Run attention once, on files or made-up numbers; compare it with the oracle; time it.",
      "ffa run --mask varlen-causal:700,1300,96 --heads 8:2 --head-dim 128 --dtype bf16 "
      "--backend cpu --check\n"
      "ffa run --mask window:4096,left=512,right=0 --heads 16:4 --time --json\n"
      "ffa run --mask varlen-causal:700,96 --heads 8:2 --backward --check\n"
      "ffa run --mask block-causal:4096,3000,900/block=512 --ranks 8 --backend cpu --backward "
      "--check\n"
      "ffa run --mask causal:65536 --heads 64:8 --ranks 8 --backend cuda --backward --check\n"
      "torchrun --no-python --nproc-per-node 8 ffa run --rendezvous /tmp/meet --mask causal:65536 "
      "--backward --check\n"
      "ffa run --mask causal:256 --heads 2 --head-dim 64 --q q.npy --k k.npy --v v.npy --out "
      "out.npy --lse lse.npy\n"
      "FFA_JIT=never ffa run --mask causal:4096 --store none --bundle bundle.ffadb\n" },
    { "simulate", cmd_simulate, false, "",
      "Model how long a mask takes on many ranks, beside ring, all-gather, Ulysses and zigzag.",
      "ffa simulate --mask varlen-causal:8192*64 --ranks 8,64 --heads 64:8\n"
      "ffa simulate --mask causal:1048576 --ranks 8,64,1024 --svg simulate.svg --json\n" },
    { "tune explain", cmd_tune_explain, true, "MASK",
      "Say what is chosen for a mask on a device, between what, and by which times.",
      "ffa tune explain causal:4096 --heads 64:8\n"
      "ffa tune explain varlen-causal:700,1300,96 --spec head_dim=64,dtype=bf16,heads=64:8 --json\n"
      "ffa tune explain full:1x65536 --heads 8:1 --device 'NVIDIA H200' --cost-tables none\n" },
    { "tune table", cmd_tune_table, true, "",
      "Print the cost table that a device gets, as JSON.",
      "ffa tune table\n"
      "ffa tune table --device 'NVIDIA H200' --cost-tables none > h200.json\n" },
    { "cache path", cmd_cache_path, true, "",
      "Say where the kernel store is.",
      "ffa cache path --explain\n" },
    { "cache ls", cmd_cache_ls, true, "",
      "List the store's kernels, newest first.",
      "ffa cache ls\n"
      "ffa cache ls --json\n" },
    { "cache show", cmd_cache_show, true, "KEY",
      "Show the entries whose key starts with KEY.",
      "ffa cache show 3f2a\n" },
    { "cache stats", cmd_cache_stats, true, "",
      "Count the store's kernels and bytes.",
      "ffa cache stats --json\n" },
    { "cache verify", cmd_cache_verify, true, "",
      "Check every entry's length and hash, and the file; with --rebuild compile some again.",
      "ffa cache verify\n"
      "ffa cache verify --rebuild 10% --seed 7 --json\n" },
    { "cache misses", cmd_cache_misses, true, "",
      "List the misses of jobs that may not compile: what to warm.",
      "ffa cache misses\n"
      "ffa warm --from-misses ~/.cache/ffa/kernels.ffadb\n"
      "ffa cache misses --forget\n" },
    { "cache failures", cmd_cache_failures, true, "",
      "List what lately failed to compile, with its log in --json.",
      "ffa cache failures --json\n"
      "ffa cache failures --forget    # so that it is tried again at once\n" },
    { "cache gc", cmd_cache_gc, true, "",
      "Remove what is long unused, by age, by size, or both.",
      "ffa cache gc --max-size 1G --older-than 30d --dry-run\n"
      "ffa cache gc --max-size 500M --json\n" },
    { "cache rm", cmd_cache_rm, true, "KEY",
      "Remove the entries of the one key that starts with KEY.",
      "ffa cache rm 3f2a\n" },
    { "cache clear", cmd_cache_clear, true, "",
      "Remove all entries.",
      "ffa cache clear\n" },
    { "bundle export", cmd_bundle_export, false, "",
      "Write the store's kernels to a bundle: one file that never changes, named by its digest.",
      "ffa bundle export --to /srv/bundles\n"
      "ffa bundle export --to . --arch sm_90a --json\n" },
    { "bundle import", cmd_bundle_import, false, "BUNDLE...",
      "Add the kernels of bundles or stores to the store.",
      "ffa bundle import ffa-1c04f5f6a1d57ac7d9c2a3fe3a97c6a4.ffadb\n"
      "ffa bundle import node1.ffadb node2.ffadb --store /srv/kernels.ffadb\n" },
    { "bundle merge", cmd_bundle_merge, false, "FOLDER BUNDLE...",
      "Write a bundle in FOLDER with the kernels of several bundles or stores.",
      "ffa bundle merge /srv/bundles shard0/kernels.ffadb shard1/kernels.ffadb\n" },
    { "bundle diff", cmd_bundle_diff, false, "A B",
      "Compare two bundles or stores, kernel by kernel; exit 1 if one has more, 4 on a conflict.",
      "ffa bundle diff old.ffadb new.ffadb\n"
      "ffa bundle diff ~/.cache/ffa/kernels.ffadb /srv/bundles/ffa-*.ffadb --json\n" },
    { "bundle inspect", cmd_bundle_inspect, false, "BUNDLE",
      "Show a bundle's digest and what is in it; --manifest prints what can be signed.",
      "ffa bundle inspect bundle.ffadb\n"
      "ffa bundle inspect bundle.ffadb --manifest | sha256sum\n" },
    { "bundle verify", cmd_bundle_verify, false, "BUNDLE",
      "Check every kernel of a bundle against its manifest, the file, and its name or --digest.",
      "ffa bundle verify bundle.ffadb\n" },
};
static const struct cli_exit_row exits[] = {
    { CLI_DONE, "done", "Done." },
    { CLI_FAILED, "failed", "Failed: a check beyond its tolerance, a kernel that does not compile, a "
      "file. `ffa warm`: some kernels failed." },
    { CLI_USAGE, "usage", "Usage: the request itself is wrong." },
    { CLI_ENVIRONMENT, "this machine cannot", "This machine cannot: no device, no NVRTC, an "
      "architecture without kernels." },
    { CLI_STORE, "store problem", "The store or a bundle has a problem." },
    { CLI_NOT_FOUND, "not found", "Not found: no such entry, or a kernel that may not be compiled." },
    { CLI_TIMED_OUT, "time-out", "A deadline passed." },
    { CLI_INTERRUPTED, "interrupted", "Interrupted. What was finished is kept." },
};
/* clang-format on */

static void print_commands(FILE *to, const char *group)
{
    for (int i = 0; i < CLI_COUNT(commands); i++)
        if (commands[i].summary &&
            (!group || (strncmp(commands[i].name, group, strlen(group)) == 0 &&
                        commands[i].name[strlen(group)] == ' ')))
            (void)fprintf(to, "  %-14s %s\n", commands[i].name, commands[i].summary);
}

const struct cli_exit_row *cli_exit_rows(int *count)
{
    *count = CLI_COUNT(exits);
    return exits;
}

const struct cli_command *cli_commands(int *count)
{
    *count = CLI_COUNT(commands);
    return commands;
}

void cli_print_usage(FILE *to)
{
    (void)fputs(
        "usage: ffa COMMAND [operands] [--options]\n\n"
        "Flex-Flash-Attention kernels: masks, plans, compiling, running, and their store.\n\n"
        "commands:\n",
        to);
    print_commands(to, NULL);
    (void)fputs("\n'ffa COMMAND --help' shows a command's options and examples.\nexit status:", to);
    for (int i = 0; i < CLI_COUNT(exits); i++)
        (void)fprintf(to, "%s %d %s", i ? "," : "", exits[i].status, exits[i].brief);
    (void)fputc('\n', to);
}

const struct cli_command *cli_find_command(int argc, char **argv, int *words)
{
    for (int i = 0; i < CLI_COUNT(commands); i++) {
        const char *name = commands[i].name;
        const char *space = strchr(name, ' ');

        *words = space ? 2 : 1;
        if (!space && strcmp(argv[0], name) == 0)
            return &commands[i];
        if (space && argc > 1 && strlen(argv[0]) == (size_t)(space - name) &&
            strncmp(argv[0], name, (size_t)(space - name)) == 0 && strcmp(argv[1], space + 1) == 0)
            return &commands[i];
    }
    return NULL;
}

static bool is_group(const char *word)
{
    for (int i = 0; i < CLI_COUNT(commands); i++)
        if (strncmp(commands[i].name, word, strlen(word)) == 0 &&
            commands[i].name[strlen(word)] == ' ')
            return true;
    return false;
}

int cli_unknown_command(struct cli *cli, int argc, char **argv)
{
    bool wants_help = argc > 1 && strcmp(argv[1], "--help") == 0;

    if (!is_group(argv[0]))
        return cli_fail_text(cli, FFA_INVALID, "'%s' is no command: see 'ffa --help'", argv[0]);
    if (wants_help) {
        (void)printf("usage: ffa %s COMMAND [operands] [--options]\n\ncommands:\n", argv[0]);
        print_commands(stdout, argv[0]);
        return CLI_DONE;
    }
    if (argc < 2)
        return cli_fail_text(cli, FFA_INVALID, "'%s' wants a second word: see 'ffa %s --help'",
                             argv[0], argv[0]);
    return cli_fail_text(cli, FFA_INVALID, "'%s %s' is no command: see 'ffa %s --help'", argv[0],
                         argv[1], argv[0]);
}

static bool has_word(int argc, char **argv, const char *word)
{
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], word) == 0)
            return true;
    return false;
}

static void print_found(const char *what, const char *version, const char *path)
{
    (void)printf("%-10s %s%s%s\n", what, version[0] ? version : "not found", path[0] ? ", " : "",
                 path);
}

/* The first line is for programs. */
static int print_version(struct cli *cli)
{
    ffa_version_info info = FFA_VERSION_INFO_INIT;
    ffa_error err = { FFA_OK, 0, "" };

    if (ffa_version_info_get(&info, NULL, &err) != FFA_OK)
        return cli_fail(cli, &err);
    (void)printf("ffa %s\n", info.version);
    (void)printf("commit     %s\ntemplates  %s\nbuilt for  CUDA %s\n", info.commit,
                 info.templates_digest, info.cuda_built);
    print_found("runtime", info.cudart_version, info.cudart_path);
    print_found("driver", info.driver_version, "");
    print_found("nvrtc", info.nvrtc_version, info.nvrtc_path);
    return CLI_DONE;
}

/* 'ffa --help' or 'ffa --version'. */
static int run_alone(struct cli *cli, int argc, char **argv)
{
    if (argc > 2)
        return cli_fail_text(cli, FFA_INVALID, "'%s' is one word too many after %s", argv[2],
                             argv[1]);
    if (strcmp(argv[1], "--version") == 0)
        return print_version(cli);
    cli_print_usage(stdout);
    return CLI_DONE;
}

static int run(struct cli *cli, int argc, char **argv)
{
    int words = 0;

    if (argc < 2) {
        cli_print_usage(stderr);
        return CLI_USAGE;
    }
    cli->json = has_word(argc, argv, "--json"); /* so that a wrong option is an object, too */
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "--version") == 0)
        return run_alone(cli, argc, argv);
    cli->command = cli_find_command(argc - 1, argv + 1, &words);
    if (!cli->command)
        return cli_unknown_command(cli, argc - 1, argv + 1);
    cli->argc = argc - 1 - words;
    cli->argv = argv + 1 + words;
    return cli->command->run(cli);
}

int main(int argc, char **argv)
{
    struct cli cli = { 0 };
    int status;

    /* A write past the limit to the size of files is an error like others. */
    (void)signal(SIGXFSZ, SIG_IGN);
    status = run(&cli, argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        cli_note(&cli, "stdout cannot be written");
        return CLI_FAILED;
    }
    return status;
}
