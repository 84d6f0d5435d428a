/* SPDX-License-Identifier: Apache-2.0
 *
 * The command `ffa`: what its files share. It sees the public headers and the oracle.
 *
 * Data goes to stdout, diagnostics go to stderr. Every command takes --json and --help; options are
 * long. With --json an error is also an object on stdout: {"error":{"status":..., "message":...}}.
 *
 * A command's options stand in one table, which it passes to cli_parse. The help, the reference,
 * the man pages and the shell completion are printed from that table (cli_describe), so they cannot
 * differ from what is parsed.
 */
#ifndef FFA_CLI_CLI_H
#define FFA_CLI_CLI_H

#include <ffa/ffa.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum cli_exit {
    CLI_DONE = 0,
    CLI_FAILED = 1,      /* the work was done and its result is bad, or a file failed */
    CLI_USAGE = 2,       /* the request itself is wrong */
    CLI_ENVIRONMENT = 3, /* this machine cannot: no device, no NVRTC */
    CLI_STORE = 4,       /* the kernel store has a problem */
    CLI_NOT_FOUND = 5,
    CLI_TIMED_OUT = 124,
    CLI_INTERRUPTED = 130 /* what was finished is kept */
};

struct cli;

/* One row of the table in main.c. `name` is one word, or two ("mask show"). */
struct cli_command {
    const char *name;
    int (*run)(struct cli *cli);
    bool uses_context; /* takes --store, --templates, --nvrtc, --cudart, --cost-tables, --verbose */
    const char *operands;
    const char *summary;  /* NULL: the command's own use, not listed */
    const char *examples; /* one a line, each with its newline */
};

/* The table of commands, and its length. Commands without a summary are for the command's own use.
 */
const struct cli_command *cli_commands(int *count);
/* The command that argv names in one word or two, or NULL; *words says in how many. */
const struct cli_command *cli_find_command(int argc, char **argv, int *words);
/* Report that argv names no command; 'GROUP --help' lists the group instead. The exit status. */
int cli_unknown_command(struct cli *cli, int argc, char **argv);
/* What `ffa --help` prints. */
void cli_print_usage(FILE *to);

/* Exit statuses and what they mean, for the usage and the reference. */
struct cli_exit_row {
    int status;
    const char *brief;   /* as the usage has it */
    const char *meaning; /* a sentence */
};
const struct cli_exit_row *cli_exit_rows(int *count);

enum { CLI_LIST_MAX = 64 };

/* The values of an option that may be given several times, in their order. */
struct cli_list {
    const char *at[CLI_LIST_MAX];
    int count;
};

struct cli_table;

struct cli {
    const struct cli_command *command;
    struct cli_table *describe; /* not NULL: cli_parse copies the options there and stops */
    int argc;                   /* operands left after cli_parse */
    char **argv;
    bool json;
    bool verbose;
    const char *store;       /* --store, or NULL */
    const char *shared;      /* --shared: NULL or "group" */
    bool network;            /* --network */
    const char *templates;   /* --templates, or NULL */
    const char *nvrtc;       /* --nvrtc, or NULL */
    const char *cudart;      /* --cudart, or NULL */
    const char *cost_tables; /* --cost-tables, or NULL */
    struct cli_list bundles; /* --bundle */
    bool uses_bundles;       /* set by cli_parse: the command has CLI_BUNDLE_OPTION */
};

/* ---- options (args.c) ---- */

enum cli_kind {
    CLI_FLAG, /* bool */
    CLI_TEXT, /* const char * */
    CLI_INT,  /* int64_t in [min, max] */
    CLI_REAL, /* double */
    CLI_LIST  /* struct cli_list */
};

struct cli_option {
    const char *name; /* without the dashes */
    enum cli_kind kind;
    void *target;
    const char *value; /* what the help calls the value */
    const char *doc;
    int64_t min, max; /* CLI_INT */
};

/* A row beside --store. */
#define CLI_SHARED_OPTION(cli)                                                                     \
    {                                                                                              \
        "shared", CLI_TEXT, &(cli)->shared, "group",                                               \
            "trust a store that its group may write, and make it so", 0, 0                         \
    }

/* A row for commands that write the store. */
#define CLI_NETWORK_OPTION(cli)                                                                    \
    {                                                                                              \
        "network", CLI_FLAG, &(cli)->network, NULL,                                                \
            "write a store on a network file system, too; else it is only read", 0, 0              \
    }

/* A row for commands that look kernels up. */
#define CLI_BUNDLE_OPTION(cli)                                                                     \
    {                                                                                              \
        "bundle", CLI_LIST, &(cli)->bundles, "FILE",                                               \
            "look into this bundle after the store; repeatable", 0, 0                              \
    }

enum { CLI_OPTIONS_MAX = 64, CLI_PARSE_GO = -1 };

/* All options of a command: its own, then those of a context if it opens one, then those of all. */
struct cli_table {
    struct cli_option rows[CLI_OPTIONS_MAX];
    int count;
    int own_count;
};

/* Read options into their targets and leave [operands_min, operands_max] operands. Returns
 * CLI_PARSE_GO, or the exit status the command must return (help was printed, or the usage is
 * wrong and was said). */
int cli_parse(struct cli *cli, const struct cli_option *options, int option_count, int operands_min,
              int operands_max);
/* The options of `command`, without running it; the targets are NULL. */
void cli_describe(const struct cli_command *command, struct cli_table *out);
/* The index of `text` in a NULL-terminated list of words, or -1. */
int cli_word(const char *text, const char *const *words);
/* "64:8", query and kv heads, or "8", as many of both: how many numbers there are; 0: the text is
 * neither. Numbers are not checked, but for those that do not fit, which are no numbers. */
int cli_heads(const char *text, int32_t *heads_q, int32_t *heads_kv);

/* ---- results and errors (cli_report.c) ---- */

/* Print one line that has texts from elsewhere in it; what is not printable becomes \xNN. */
void cli_line(FILE *to, const char *format, ...) FFA_PRINTF(2, 3);
/* The same with a text of several lines, such as a compiler's log. */
void cli_text(FILE *to, const char *text);
/* Print an object on stdout, with jansson's flags; whether it could be. */
bool cli_put_json(const json_t *object, size_t flags);
/* Say one sentence on stderr: "ffa mask show: ...". */
void cli_note(const struct cli *cli, const char *format, ...) FFA_PRINTF(2, 3);
/* Report an error; returns the exit status that belongs to err->status. */
int cli_fail(const struct cli *cli, const ffa_error *err);
/* The same with a text of the command itself. */
int cli_fail_text(const struct cli *cli, ffa_status status, const char *format, ...)
    FFA_PRINTF(3, 4);
int cli_exit_of(ffa_status status);
const char *cli_status_name(ffa_status status); /* "FFA_INVALID" */
/* Print `object` on stdout, release it, and return `exit_status` (CLI_FAILED if stdout fails). */
int cli_print_json(const struct cli *cli, json_t *object, int exit_status);
/* A JSON number; null for what JSON has no number for (infinities, NaN). */
json_t *cli_real(double value);
/* Set object[key] to a number, rounded to what the unit deserves. */
void cli_set_int(json_t *object, const char *key, int64_t value);
void cli_set_real(json_t *object, const char *key, double value);
void cli_set_text(json_t *object, const char *key, const char *value);

/* ---- what the environment says (environment.c): where the store is, which shard, what terminal
 * ---- */

enum { CLI_PATH_BYTES = 4096 };
struct cli_place {
    char path[CLI_PATH_BYTES]; /* of kernels.ffadb; empty: memory only */
    char chosen_by[32];        /* "--store", "FFA_CACHE_DIR", ... "nothing" */
    char explain[6][4352];     /* one line a candidate, in order */
    int explain_count;
};

int cli_find_place(const struct cli *cli, struct cli_place *place);

/* The bundles in use: --bundle, then FFA_BUNDLES; none where the command has no --bundle. `names`
 * holds the variable's; all texts live as long as it and the command line. CLI_PARSE_GO, or the
 * exit status. */
struct cli_bundles {
    struct cli_list list;
    char names[4096];
};
int cli_find_bundles(const struct cli *cli, struct cli_bundles *bundles);

/* Open a context with the command's options. CLI_PARSE_GO, or the exit status. */
int cli_open(const struct cli *cli, ffa_context **out, int device, uint32_t flags);
/* The same, to compile in worker processes of this executable. */
struct cli_workers {
    uint32_t timeout_ms, memory_mib; /* of a compile; of a worker */
};
int cli_open_with_workers(const struct cli *cli, ffa_context **out, int device,
                          const struct cli_workers *workers);
/* Whether the context's store is there and takes what is built; else CLI_STORE, and why is said. */
int cli_check_store(const struct cli *cli, ffa_context *context);
/* Whether FFA_JIT=never; *bad is set where the variable is neither never nor auto. */
bool cli_never_compile(const char **bad);

/* Which of the processes of one launch this is. */
struct cli_shard {
    int64_t index, count; /* 0 <= index < count */
    int64_t local;        /* processes on this node, as far as the launcher says; at least 1 */
    char from[64];        /* "--shard", "SLURM_PROCID, SLURM_NTASKS", ...; empty: not sharded */
};
/* `text` is "I/N"; "auto": by the launcher's variables; or NULL: all. Says on stderr what the
 * variables led to. CLI_PARSE_GO, or the exit status. */
int cli_find_shard(const struct cli *cli, const char *text, struct cli_shard *out);

/* A variable of the environment: a rendezvous_variable. */
const char *cli_variable(void *user, const char *name);
/* The folder of the rendezvous of a launch: `folder` of --rendezvous, or else FFA_RENDEZVOUS, or
 * NULL. */
const char *cli_find_rendezvous(const char *folder);
/* The file of NCCL: that of --nccl, or else FFA_NCCL, or NULL. */
const char *cli_find_nccl(const char *file);

/* Whether stderr can be drawn on, and in colour (TERM, NO_COLOR). */
void cli_find_terminal(bool *can_draw, bool *has_colour);

/* ---- the commands ---- */

int cmd_help(struct cli *cli);
int cmd_doctor(struct cli *cli);
int cmd_mask_show(struct cli *cli);
int cmd_mask_check(struct cli *cli);
int cmd_mask_area(struct cli *cli);
int cmd_plan(struct cli *cli);
int cmd_compile(struct cli *cli);
int cmd_run(struct cli *cli);
int cmd_simulate(struct cli *cli);
int cmd_explain(struct cli *cli);
int cmd_tune_explain(struct cli *cli);
int cmd_tune_table(struct cli *cli);
int cmd_warm(struct cli *cli);
int cmd_kernel_worker(struct cli *cli);
int cmd_tune_run(struct cli *cli);
int cmd_tune_show(struct cli *cli);
int cmd_tune_merge(struct cli *cli);
int cmd_tune_export(struct cli *cli);
int cmd_tune_import(struct cli *cli);
int cmd_cache_path(struct cli *cli);
int cmd_cache_ls(struct cli *cli);
int cmd_cache_show(struct cli *cli);
int cmd_cache_stats(struct cli *cli);
int cmd_cache_verify(struct cli *cli);
int cmd_cache_misses(struct cli *cli);
int cmd_cache_failures(struct cli *cli);
int cmd_cache_gc(struct cli *cli);
int cmd_cache_rm(struct cli *cli);
int cmd_cache_clear(struct cli *cli);
int cmd_bundle_export(struct cli *cli);
int cmd_bundle_import(struct cli *cli);
int cmd_bundle_merge(struct cli *cli);
int cmd_bundle_diff(struct cli *cli);
int cmd_bundle_inspect(struct cli *cli);
int cmd_bundle_verify(struct cli *cli);

#define CLI_COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

#endif
