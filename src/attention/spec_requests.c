/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of a spec as public requests. They come from the code that loads them
 * (kernels_list), which is run without a device, so that a new kernel of a spec cannot be forgotten
 * here. A request has the settings that the spec asks for: what is chosen for the architecture is
 * chosen again, in the same way, by whoever compiles it.
 */
#include "attention/kernels.h"

enum { SETTING_BYTES = 40 };

struct ffa_requests {
    ffa_compile_request at[KERNEL_LIST_MAX];
    const char *settings[KERNEL_LIST_MAX][JIT_SPEC_MAX];
    char texts[KERNEL_LIST_MAX][JIT_SPEC_MAX][SETTING_BYTES];
    char arch[16];
    int32_t count;
};

/* A row that is said in any case, as models differ in it. */
static bool is_said(const char *row)
{
    return !strcmp(row, "head_dim") || !strcmp(row, "dtype") || !strcmp(row, "gradient");
}

static void add(ffa_requests *requests, const struct jit_spec *asked)
{
    const int32_t index = requests->count++;
    ffa_compile_request *request = &requests->at[index];

    *request = (ffa_compile_request)FFA_COMPILE_REQUEST_INIT;
    request->template_name = jit_spec_template(asked);
    request->settings = requests->settings[index];
    request->arch = requests->arch;
    for (int32_t row = 0; row < asked->row_count; row++) {
        char *text = requests->texts[index][request->setting_count];

        if (jit_spec_setting(asked, row, text, SETTING_BYTES) ||
            is_said(jit_spec_row_name(asked, row)))
            requests->settings[index][request->setting_count++] = text;
    }
}

static ffa_status requests_make(ffa_requests **out, const ffa_attention_spec *spec_in,
                                const char *arch_in, const struct choose_device *device,
                                ffa_error *err)
{
    const struct jit_arch *arch;
    struct kernel_list list;
    ffa_attention_spec spec;
    ffa_requests *requests;
    ffa_status rc;

    FFA_TRY(opts_import(&spec, sizeof spec, spec_in, err));
    FFA_TRY(jit_arch_find(&arch, arch_in ? arch_in : JIT_ARCH_DEFAULT, err));
    FFA_TRY(kernels_list(&list, &spec, arch->name, device, err));
    requests = mem_array(1, sizeof *requests);
    if (!requests) {
        rc = error_nomem(err, "the requests of a spec");
        goto out;
    }
    text_copy(requests->arch, "%s", arch->name);
    for (int32_t i = 0; i < list.count; i++)
        add(requests, &list.asked[i]);
    *out = requests;
out:
    return rc;
}

ffa_status ffa_spec_requests(ffa_requests **out, const ffa_attention_spec *spec, const char *arch,
                             ffa_error *err)
{
    const struct choose_device device = choose_device_of(&(struct device_facts){ .name = "" });

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "ffa_spec_requests: out is NULL");
    *out = NULL;
    if (!spec)
        return error_fail(err, FFA_INVALID, 0, "ffa_spec_requests: spec is NULL");
    return requests_make(out, spec, arch, &device, err);
}

ffa_status ffa_spec_requests_on(ffa_requests **out, ffa_context *context, const char *device,
                                const ffa_attention_spec *spec, const char *arch, ffa_error *err)
{
    struct choose_device chosen;
    ffa_status rc;

    if (!out)
        return error_fail(err, FFA_INVALID, 0, "ffa_spec_requests_on: out is NULL");
    *out = NULL;
    if (!context || !spec)
        return error_fail(err, FFA_INVALID, 0, "ffa_spec_requests_on: %s is NULL",
                          context ? "spec" : "context");
    FFA_TRY(context_choose_model(&chosen, context, device, err));
    rc = requests_make(out, spec, arch ? arch : context->arch, &chosen, err);
out:
    return rc;
}

const ffa_compile_request *ffa_requests_get(const ffa_requests *requests, int64_t *count)
{
    if (count)
        *count = requests ? requests->count : 0;
    return requests ? requests->at : NULL;
}

void ffa_requests_destroy(ffa_requests *requests)
{
    mem_free(requests);
}
