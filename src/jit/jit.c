/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests and their compile. Invariant: the compiler sees exactly what the key covers, which is
 * the template's set of files, the spec values, the architecture and the options below. The record
 * is written in the same loops as the hash, so that it names every field of the key.
 */
#include "jit/jit.h"

#include "base/digest.h"
#include "base/fork.h"
#include "jit/compile_report.h"
#include "jit/compile_worker.h"
#include "jit/nvrtc.h"
#include "jit/source.h"

#include <pthread.h>
#include <stdio.h>

/* Options that change code: part of the key, sorted. */
static const char *const code_options[] = { "-default-device", "-std=c++17" };
enum { CODE_OPTIONS = sizeof code_options / sizeof *code_options };

/* Options that do not. --no-cache: a hit in NVRTC's own cache hides the ptxas report.
 * --no-source-include: NVRTC would else look for "..." in the working folder. */
static const char *const plain_options[] = { "--no-cache", "--no-source-include",
                                             "--ptxas-options=-v" };
enum { PLAIN_OPTIONS = sizeof plain_options / sizeof *plain_options };

enum { WORKER_MS = 300000, WORKER_MIB = 2048 };

struct jit {
    struct sources sources;
    const char *nvrtc_path;    /* borrowed; NULL: search */
    struct worker_opts worker; /* path: borrowed; NULL: compile in this process */
    struct log log;
    pthread_mutex_t lock;
    struct nvrtc *nvrtc; /* under lock until set; then constant */
    struct fork_guard guard;
};

static void jit_in_child(void *object)
{
    (void)object;
    nvrtc_in_child();
}

ffa_status jit_create(struct jit **out, const struct jit_opts *opts, const struct log *log,
                      ffa_error *err)
{
    struct jit *jit = mem_array(1, sizeof *jit);
    ffa_status rc;

    *out = NULL;
    if (!jit)
        return error_nomem(err, "the compiler");
    jit->log = *log;
    jit->nvrtc_path = opts->nvrtc_path;
    jit->worker = (struct worker_opts){
        .path = opts->worker_path,
        .timeout_ms = opts->worker_timeout_ms ? (int64_t)opts->worker_timeout_ms : WORKER_MS,
        .memory_bytes = (int64_t)(opts->worker_memory_mib ? opts->worker_memory_mib : WORKER_MIB)
                        << 20,
    };
    (void)pthread_mutex_init(&jit->lock, NULL);
    fork_guard_add(&jit->guard, &jit->lock, jit_in_child, jit);
    FFA_TRY(sources_open(&jit->sources, opts->templates_dir, err));
    *out = jit;
    jit = NULL;
out:
    jit_destroy(jit);
    return rc;
}

void jit_destroy(struct jit *jit)
{
    if (!jit)
        return;
    fork_guard_remove(&jit->guard);
    nvrtc_close(jit->nvrtc);
    sources_finish(&jit->sources);
    (void)pthread_mutex_destroy(&jit->lock);
    mem_free(jit);
}

void jit_kernel_finish(struct jit_kernel *kernel)
{
    mem_free(kernel->cubin);
    mem_free(kernel->record);
    *kernel = (struct jit_kernel){ 0 };
}

void jit_result_finish(struct jit_result *result)
{
    jit_kernel_finish(&result->kernel);
    mem_free(result->log);
    mem_free(result->ptx);
    *result = (struct jit_result){ 0 };
}

/* ---- NVRTC ---- */

static const struct nvrtc *opened(struct jit *jit)
{
    const struct nvrtc *nvrtc;

    (void)pthread_mutex_lock(&jit->lock);
    nvrtc = jit->nvrtc;
    (void)pthread_mutex_unlock(&jit->lock);
    return nvrtc;
}

/* The lock is held while the library loads, never while it compiles. */
ffa_status jit_open_compiler(struct jit *jit, ffa_error *err)
{
    bool fresh = false;
    ffa_status rc = FFA_OK;

    (void)pthread_mutex_lock(&jit->lock);
    if (!jit->nvrtc) {
        rc = nvrtc_open(&jit->nvrtc, jit->nvrtc_path, err);
        fresh = rc == FFA_OK;
    }
    (void)pthread_mutex_unlock(&jit->lock);
    if (fresh)
        log_line(&jit->log, FFA_LOG_INFO, "jit", "event=nvrtc_open path=%s toolchain=\"%s\"",
                 nvrtc_path(jit->nvrtc), nvrtc_toolchain(jit->nvrtc));
    return rc;
}

const char *jit_nvrtc_path(struct jit *jit)
{
    const struct nvrtc *nvrtc = opened(jit);

    return nvrtc ? nvrtc_path(nvrtc) : "";
}

const char *jit_nvrtc_version(struct jit *jit)
{
    const struct nvrtc *nvrtc = opened(jit);

    return nvrtc ? nvrtc_version(nvrtc) : "";
}

const char *jit_toolchain(struct jit *jit)
{
    const struct nvrtc *nvrtc = opened(jit);

    return nvrtc ? nvrtc_toolchain(nvrtc) : "";
}

/* ---- requests ---- */

/* Row indices of a spec, sorted by name: the order of declaration is no part of the key. */
static void sorted_rows(const struct jit_spec *spec, int32_t order[JIT_SPEC_MAX])
{
    for (int32_t i = 0; i < spec->row_count; i++) {
        int32_t at = i;

        for (; at > 0 &&
               strcmp(jit_spec_row_name(spec, i), jit_spec_row_name(spec, order[at - 1])) < 0;
             at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

void jit_request_init(struct jit_request *request, const struct jit_spec *spec, const char *arch)
{
    request->spec = *spec;
    memset(request->arch, 0, sizeof request->arch);
    memcpy(request->arch, arch, strnlen(arch, sizeof request->arch - 1));
    request->key[0] = '\0';
    request->record = NULL;
    request->sources = NULL;
    request->worker = NULL;
}

void jit_request_finish(struct jit_request *request)
{
    mem_free(request->record);
    mem_free(request->sources);
    *request = (struct jit_request){ 0 };
}

/* Hash and record say the same, field by field. */
static void describe_spec(const struct jit_spec *spec, struct digest *digest, struct text *record)
{
    int32_t order[JIT_SPEC_MAX];

    sorted_rows(spec, order);
    digest_number(digest, spec->row_count);
    for (int32_t i = 0; i < spec->row_count; i++) {
        const char *row = jit_spec_row_name(spec, order[i]);

        digest_text(digest, row);
        digest_number(digest, spec->values[order[i]]);
        text_add(record, "spec.%s=%d\n", row, (int)spec->values[order[i]]);
    }
}

static void describe_sources(const struct source_set *set, struct digest *digest,
                             struct text *record)
{
    digest_number(digest, set->count);
    for (int i = 0; i < set->count; i++) {
        char bytes[DIGEST_TEXT];

        digest_text(digest, set->at[i]->name);
        digest_field(digest, set->at[i]->text, set->at[i]->bytes);
        digest_bytes(set->at[i]->text, set->at[i]->bytes, bytes);
        text_add(record, "text.%s=%s\n", set->at[i]->name, bytes);
    }
}

/* The key, and the record (caller frees; NULL: no memory). */
static char *describe(const struct jit_request *request, char key[DIGEST_TEXT])
{
    const char *name = jit_spec_template(&request->spec);
    struct text record = { 0 };
    struct digest digest;
    char *text;

    digest_init(&digest);
    digest_number(&digest, JIT_SCHEMA);
    digest_text(&digest, name);
    digest_text(&digest, request->arch);
    text_add(&record, "schema=%d\ntemplate=%s\narch=%s\n", JIT_SCHEMA, name, request->arch);
    digest_number(&digest, CODE_OPTIONS);
    for (int i = 0; i < CODE_OPTIONS; i++) {
        digest_text(&digest, code_options[i]);
        text_add(&record, "option=%s\n", code_options[i]);
    }
    describe_spec(&request->spec, &digest, &record);
    describe_sources(request->sources, &digest, &record);
    digest_final(&digest, key);
    text = text_take(&record);
    text_finish(&record);
    return text;
}

/* The digest of an embedded file; false: there is no such file. */
static bool embedded_digest(const char *name, size_t bytes, char out[DIGEST_TEXT])
{
    for (int i = 0; i < embedded_template_count; i++) {
        const struct embedded_file *file = &embedded_templates[i];

        if (strlen(file->name) == bytes && !memcmp(file->name, name, bytes)) {
            digest_bytes(file->text, file->bytes, out);
            return true;
        }
    }
    return false;
}

bool jit_record_is_ours(const char *record)
{
    static const char head[] = "text.";
    char schema[32], digest[DIGEST_TEXT];
    int texts = 0;

    text_copy(schema, "schema=%d\n", JIT_SCHEMA);
    if (!record || strncmp(record, schema, strlen(schema)) != 0)
        return false;
    for (const char *at = record; *at; at += strcspn(at, "\n"), at += *at != 0) {
        const char *name = at + strlen(head);
        size_t bytes;

        if (strncmp(at, head, strlen(head)) != 0)
            continue;
        bytes = strcspn(name, "=\n");
        if (name[bytes] != '=' || !embedded_digest(name, bytes, digest) ||
            strncmp(name + bytes + 1, digest, strlen(digest)) != 0 ||
            name[bytes + 1 + strlen(digest)] != '\n')
            return false;
        texts++;
    }
    return texts > 0;
}

ffa_status jit_request_complete(struct jit_request *request, struct jit *jit, ffa_error *err)
{
    struct source_set *sources = NULL;
    char key[DIGEST_TEXT];
    ffa_status rc = FFA_OK;

    if (request->key[0])
        goto out;
    sources = mem_array(1, sizeof *sources);
    if (!sources) {
        rc = error_nomem(err, "a kernel's sources");
        goto out;
    }
    FFA_TRY(sources_collect(sources, &jit->sources, jit_spec_template(&request->spec), err));
    request->sources = sources;
    request->record = describe(request, key);
    if (!request->record) {
        request->sources = NULL;
        rc = error_nomem(err, "a kernel's record");
        goto out;
    }
    memcpy(request->key, key, sizeof request->key);
    sources = NULL;
out:
    mem_free(sources);
    return rc;
}

/* ---- compile ---- */

/* Options as NVRTC takes them: pointers into one buffer of fixed rows. */
struct options {
    const char *at[CODE_OPTIONS + PLAIN_OPTIONS + 2 + JIT_SPEC_MAX];
    int count;
    char arch[32];
    char defines[JIT_SPEC_MAX][64];
};

static void options_build(struct options *options, const struct jit_request *request)
{
    const struct jit_spec *spec = &request->spec;

    options->count = 0;
    text_copy(options->arch, "-arch=%s", request->arch);
    options->at[options->count++] = options->arch;
    for (int i = 0; i < CODE_OPTIONS; i++)
        options->at[options->count++] = code_options[i];
    for (int i = 0; i < PLAIN_OPTIONS; i++)
        options->at[options->count++] = plain_options[i];
    options->at[options->count++] = "-DFFA_JIT";
    for (int32_t i = 0; i < spec->row_count; i++) {
        text_copy(options->defines[i], "-DFFA_SPEC_%s=%d", jit_spec_row_name(spec, i),
                  (int)spec->values[i]);
        options->at[options->count++] = options->defines[i];
    }
}

static ffa_status run_nvrtc(struct jit *jit, const struct jit_request *request, bool want_ptx,
                            struct nvrtc_output *out, ffa_error *err)
{
    const char *headers[SOURCE_SET_MAX], *names[SOURCE_SET_MAX];
    const struct source_set *set = request->sources;
    struct options options;
    struct worker alone = { 0 };
    struct nvrtc_job job;
    int count = 0;
    ffa_status rc;

    for (int i = 0; i < set->count; i++) {
        if (set->at[i] == set->root)
            continue;
        headers[count] = set->at[i]->text;
        names[count++] = set->at[i]->name;
    }
    options_build(&options, request);
    job = (struct nvrtc_job){ .name = set->root->name,
                              .text = set->root->text,
                              .header_count = count,
                              .headers = headers,
                              .header_names = names,
                              .option_count = options.count,
                              .options = options.at,
                              .want_ptx = want_ptx };
    if (!jit->worker.path)
        return nvrtc_compile(opened(jit), &job, out, err);
    rc = worker_compile(request->worker ? request->worker : &alone, &jit->worker,
                        nvrtc_path(opened(jit)), &job, out, err);
    worker_end(&alone);
    return rc;
}

/* Say which kernel did not compile and why, in one line. */
static ffa_status explain(ffa_status status, const struct jit_spec *spec, const char *log,
                          ffa_error *err)
{
    char first[352], values[128];

    if (status != FFA_COMPILE)
        return status;
    jit_spec_text(spec, values, sizeof values);
    /* The compiler ran out of memory, not the template: with more it may compile. */
    if (log && (strstr(log, "catastrophic error: out of memory") ||
                strstr(log, "ptxas fatal   : Memory allocation failure")))
        return error_fail(err, FFA_NOMEM, err ? err->native : 0,
                          "%s (%s): the compiler ran out of memory", jit_spec_template(spec),
                          values);
    report_first_error(log, first, sizeof first);
    if (!*first)
        return status;
    return error_fail(err, FFA_COMPILE, err ? err->native : 0, "%s (%s): %s",
                      jit_spec_template(spec), values, first);
}

static void fill_info(ffa_kernel_info *info, const struct jit_request *request, const char *log)
{
    const struct jit_spec *spec = &request->spec;
    struct report report = report_read(log, jit_spec_template(spec));

    info->struct_size = (uint32_t)sizeof *info;
    info->registers = report.registers;
    info->shared_bytes =
        jit_spec_shared_bytes(spec) + (report.shared_bytes > 0 ? report.shared_bytes : 0);
    info->spill_bytes = report.spill_bytes;
    info->advisory_count = report.advisory_count;
    info->threads = jit_spec_threads(spec);
    text_copy(info->template_name, "%s", jit_spec_template(spec));
    text_copy(info->arch, "%s", request->arch);
}

ffa_status jit_compile(struct jit *jit, struct jit_request *request, bool want_ptx,
                       struct jit_result *out, ffa_error *err)
{
    struct jit_kernel *kernel = &out->kernel;
    struct nvrtc_output got = { 0 };
    int64_t started;
    ffa_status rc;

    *out = (struct jit_result){ 0 };
    FFA_TRY(jit_request_complete(request, jit, err));
    memcpy(kernel->info.key, request->key, sizeof kernel->info.key);
    kernel->record = mem_strdup(request->record);
    if (!kernel->record) {
        rc = error_nomem(err, "a kernel's record");
        goto out;
    }
    FFA_TRY(jit_open_compiler(jit, err));
    started = clock_us();
    rc = run_nvrtc(jit, request, want_ptx, &got, err);
    out->log = got.log;
    out->ptx = got.ptx;
    out->is_final = got.is_final;
    kernel->cubin = got.cubin;
    kernel->cubin_bytes = got.cubin_bytes;
    kernel->info.compile_us = clock_us() - started;
    kernel->info.cubin_bytes = (int64_t)got.cubin_bytes;
    text_copy(kernel->info.toolchain, "%s", jit_toolchain(jit));
    if (rc != FFA_OK) {
        rc = explain(rc, &request->spec, got.log, err);
        /* What the compiler gave up with may still be taken: the next kernel gets a fresh worker.
         */
        if (rc == FFA_NOMEM && request->worker)
            worker_end(request->worker);
        goto out;
    }
    fill_info(&kernel->info, request, got.log);
    if (!report_has_entry(kernel->cubin, kernel->cubin_bytes, jit_spec_template(&request->spec))) {
        out->is_final = true;
        rc = error_fail(err, FFA_COMPILE, 0,
                        "%s: its text defines no extern \"C\" kernel of that name",
                        jit_spec_template(&request->spec));
    }
out:
    if (rc != FFA_OK)
        jit_kernel_finish(kernel);
    return rc;
}

/* ---- the same by hand ---- */

/* In single quotes where a shell would not take it as it is. */
static void add_quoted(struct text *text, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-+=./,:@%";

    if (*word && word[strspn(word, plain)] == '\0') {
        text_add(text, "%s", word);
        return;
    }
    text_add(text, "'");
    for (; *word; word++)
        if (*word == '\'')
            text_add(text, "'\\''");
        else
            text_add_bytes(text, word, 1);
    text_add(text, "'");
}

ffa_status jit_command(const struct jit_request *request, const char *templates_dir,
                       const char *output, char **out, ffa_error *err)
{
    const struct jit_spec *spec = &request->spec;
    const struct jit_arch *found;
    struct text text = { 0 }, file = { 0 };
    ffa_status rc;

    *out = NULL;
    FFA_TRY(jit_arch_find(&found, request->arch, err));
    text_add(&text, "nvcc -cubin -gencode=arch=%s,code=%s -std=c++17 -DFFA_JIT",
             found->virtual_name, found->name);
    for (int32_t i = 0; i < spec->row_count; i++)
        text_add(&text, " -DFFA_SPEC_%s=%d", jit_spec_row_name(spec, i), (int)spec->values[i]);
    text_add(&text, " -o ");
    add_quoted(&text, output);
    text_add(&file, "%s/%s.cu", templates_dir, jit_spec_template(spec));
    text_add(&text, " ");
    add_quoted(&text, file.failed ? "" : file.at);
    *out = file.failed ? NULL : text_take(&text);
    if (!*out)
        rc = error_nomem(err, "a command line");
out:
    text_finish(&file);
    text_finish(&text);
    return rc;
}
