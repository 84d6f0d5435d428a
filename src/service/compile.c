/* SPDX-License-Identifier: Apache-2.0
 *
 * ffa_compile and its relatives: a public request is checked and resolved once, here, and what the
 * layers or the compiler answer is kept in a handle. Invariant: the handle borrows what is in the
 * table and owns what a forced compile made, which is kept out of all layers.
 */
#include "service/context.h"

#include "choose/spec_choice.h"

enum { KNOWN_FLAGS = FFA_COMPILE_FORCE | FFA_COMPILE_PTX, SETTINGS_MAX = 1024 };

struct ffa_compiled {
    struct resolved found; /* points into the table, or into `own` */
    struct jit_result own; /* a forced compile's */
    char *log;             /* of a compile on the way; NULL: none ran */
    bool is_whole;         /* the compile succeeded */
};

ffa_status context_import_request(struct jit_request *out, uint32_t *flags, ffa_context *context,
                                  const ffa_compile_request *request, ffa_error *err)
{
    ffa_compile_request given;
    struct jit_spec spec;
    const char *arch;
    ffa_status rc;

    *out = (struct jit_request){ 0 };

    if (!context || !request)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", context ? "request" : "context");
    FFA_TRY(opts_import(&given, sizeof given, request, err));
    if (given.flags & ~(uint32_t)KNOWN_FLAGS)
        return error_fail(err, FFA_UNSUPPORTED, 0, "request: flags is 0x%x, known are 0x%x",
                          given.flags, (unsigned)KNOWN_FLAGS);
    if (given.setting_count < 0 || given.setting_count > SETTINGS_MAX)
        return error_fail(err, FFA_INVALID, 0, "request: setting_count is %lld, not in [0, %d]",
                          (long long)given.setting_count, SETTINGS_MAX);
    if (given.setting_count && !given.settings)
        return error_fail(err, FFA_INVALID, 0, "request: settings is NULL, setting_count is %lld",
                          (long long)given.setting_count);
    FFA_TRY(jit_spec_init(&spec, given.template_name, err));
    for (int64_t i = 0; i < given.setting_count; i++)
        FFA_TRY(jit_spec_set(&spec, given.settings[i], err));
    arch = given.arch ? given.arch : context->arch;
    FFA_TRY(choose_spec(&spec, arch, err));
    jit_request_init(out, &spec, arch);
    *flags = given.flags;
out:
    return rc;
}

/* Past all layers, and kept out of them. */
static ffa_status compile_alone(ffa_compiled *compiled, ffa_context *context,
                                struct jit_request *request, bool want_ptx, ffa_error *err)
{
    struct jit_kernel *kernel = &compiled->own.kernel;
    ffa_status rc;

    if (context->opts.flags & FFA_OPEN_NEVER_COMPILE)
        return error_fail(err, FFA_NOT_FOUND, 0,
                          "request: flags asks for a compile, FFA_OPEN_NEVER_COMPILE is set");
    rc = context_compile(&compiled->own, context, request, want_ptx, err);
    kernel->info.layer = FFA_LAYER_COMPILED;
    kernel->info.resolve_us = kernel->info.compile_us;
    compiled->found = (struct resolved){ .cubin = kernel->cubin,
                                         .cubin_bytes = kernel->cubin_bytes,
                                         .record = kernel->record,
                                         .info = kernel->info };
    return rc;
}

ffa_status ffa_compile(ffa_compiled **out, ffa_context *context, const ffa_compile_request *request,
                       ffa_error *err)
{
    ffa_compiled *compiled = NULL;
    struct jit_request wanted = { 0 };
    uint32_t flags;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    FFA_TRY(context_import_request(&wanted, &flags, context, request, err));
    compiled = mem_array(1, sizeof *compiled);
    if (!compiled) {
        rc = error_nomem(err, "a compiled kernel");
        goto out;
    }
    rc = flags & (FFA_COMPILE_FORCE | FFA_COMPILE_PTX)
             ? compile_alone(compiled, context, &wanted, flags & FFA_COMPILE_PTX, err)
             : context_resolve(&compiled->found, context, &wanted, &compiled->log, err);
    compiled->is_whole = rc == FFA_OK;
    if (rc == FFA_OK || rc == FFA_COMPILE) {
        *out = compiled;
        compiled = NULL;
    }
out:
    jit_request_finish(&wanted);
    ffa_compiled_destroy(compiled);
    return rc;
}

void ffa_compiled_destroy(ffa_compiled *compiled)
{
    if (!compiled)
        return;
    jit_result_finish(&compiled->own);
    mem_free(compiled->log);
    mem_free(compiled);
}

ffa_status ffa_compiled_info(const ffa_compiled *compiled, ffa_kernel_info *info, ffa_error *err)
{
    if (!compiled || !info)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL", compiled ? "info" : "compiled");
    if (!compiled->is_whole)
        return error_fail(err, FFA_INVALID, 0, "this kernel did not compile: only its log is here");
    return opts_export(info, &compiled->found.info, sizeof compiled->found.info, err);
}

const void *ffa_compiled_cubin(const ffa_compiled *compiled, size_t *bytes)
{
    if (bytes)
        *bytes = compiled ? compiled->found.cubin_bytes : 0;
    return compiled ? compiled->found.cubin : NULL;
}

static const char *text_or_empty(const char *text)
{
    return text ? text : "";
}

const char *ffa_compiled_ptx(const ffa_compiled *compiled)
{
    return text_or_empty(compiled ? compiled->own.ptx : NULL);
}

const char *ffa_compiled_log(const ffa_compiled *compiled)
{
    if (!compiled)
        return "";
    return text_or_empty(compiled->log ? compiled->log : compiled->own.log);
}

const char *ffa_compiled_record(const ffa_compiled *compiled)
{
    return text_or_empty(compiled ? compiled->found.record : NULL);
}

ffa_status ffa_compile_command(ffa_context *context, const ffa_compile_request *request,
                               const char *templates_dir, const char *output, char **out,
                               ffa_error *err)
{
    struct jit_request wanted;
    uint32_t flags;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "out is NULL");
    *out = NULL;
    if (!templates_dir || !*templates_dir || !output || !*output)
        return error_fail(err, FFA_INVALID, 0, "%s is NULL or empty",
                          templates_dir && *templates_dir ? "output" : "templates_dir");
    FFA_TRY(context_import_request(&wanted, &flags, context, request, err));
    rc = jit_command(&wanted, templates_dir, output, out, err);
out:
    return rc;
}

ffa_status ffa_compile_key(ffa_context *context, const ffa_compile_request *request, char key[33],
                           char **record, ffa_error *err)
{
    struct jit_request wanted = { 0 };
    uint32_t flags;
    ffa_status rc;

    if (record)
        *record = NULL;
    if (!key)
        return error_fail(err, FFA_INVALID, 0, "key is NULL");
    key[0] = '\0';
    FFA_TRY(context_import_request(&wanted, &flags, context, request, err));
    FFA_TRY(jit_request_complete(&wanted, context->jit, err));
    memcpy(key, wanted.key, sizeof wanted.key);
    if (record) {
        *record = wanted.record;
        wanted.record = NULL;
    }
out:
    jit_request_finish(&wanted);
    return rc;
}
