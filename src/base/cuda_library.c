/* SPDX-License-Identifier: Apache-2.0
 *
 * The search for NVIDIA's libraries. Invariant: a library that the process has loaded comes before
 * any other, so that a framework and libffa share one. The loader finds it by its soname with
 * RTLD_NOLOAD, wherever its file is. A library that is refused is closed again.
 */
#include "base/cuda_library.h"

#include <dlfcn.h>
#include <glob.h>

static bool try_open(const struct cuda_library *wanted, const char *name, int flags,
                     struct text *tried)
{
    void *library = fault_here(wanted->fault) ? NULL : dlopen(name, RTLD_NOW | RTLD_LOCAL | flags);

    if (!library) {
        if (!(flags & RTLD_NOLOAD))
            text_add(tried, "; '%s' not there", name);
        return false;
    }
    if (wanted->accept(wanted->taker, library, name, tried))
        return true;
    (void)dlclose(library);
    return false;
}

/* A stem with its ending is all of the name: such libraries have no version for each CUDA. */
static bool is_whole(const struct cuda_library *wanted)
{
    return strstr(wanted->stem, ".so") != NULL;
}

static bool try_sonames(const struct cuda_library *wanted, int flags, struct text *tried)
{
    static const char *const endings[] = { ".so.13", ".so.12", ".so" };
    char name[64];

    if (is_whole(wanted))
        return try_open(wanted, wanted->stem, flags, tried);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        text_copy(name, "%s%s", wanted->stem, endings[i]);
        if (try_open(wanted, name, flags, tried))
            return true;
    }
    return false;
}

/* The newest name first. */
static bool try_pattern(const struct cuda_library *wanted, const char *pattern, struct text *tried)
{
    glob_t found = { 0 };
    bool taken = false;

    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t n = found.gl_pathc; n > 0 && !taken; n--)
            taken = try_open(wanted, found.gl_pathv[n - 1], 0, tried);
    globfree(&found);
    return taken;
}

static bool try_toolkits(const struct cuda_library *wanted, struct text *tried)
{
    static const char *const folders[] = { FFA_CUDA_BUILD_DIR, "/usr/local/cuda/lib64" };
    char pattern[512];

    if (is_whole(wanted)) /* no part of the toolkit */
        return false;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        text_copy(pattern, "%s/%s.so.1[23]", folders[i], wanted->stem);
        if (folders[i][0] == '/' && try_pattern(wanted, pattern, tried))
            return true;
    }
    return false;
}

static bool try_wheels(const struct cuda_library *wanted, struct text *tried)
{
    static const char *const pythons[] = { "/usr/local/lib/python3*/*-packages/nvidia",
                                           "/usr/lib/python3*/*-packages/nvidia" };
    char pattern[512];

    for (size_t i = 0; i < sizeof pythons / sizeof *pythons; i++) {
        if (is_whole(wanted)) {
            text_copy(pattern, "%s/%s/lib/%s", pythons[i], wanted->wheel_12, wanted->stem);
            if (try_pattern(wanted, pattern, tried))
                return true;
            continue;
        }
        text_copy(pattern, "%s/cu13/lib/%s.so.13", pythons[i], wanted->stem);
        if (try_pattern(wanted, pattern, tried))
            return true;
        text_copy(pattern, "%s/%s/lib/%s.so.12", pythons[i], wanted->wheel_12, wanted->stem);
        if (try_pattern(wanted, pattern, tried))
            return true;
    }
    return false;
}

bool cuda_library_open(const struct cuda_library *wanted, const char *path, struct text *tried)
{
    if (path)
        return try_open(wanted, path, 0, tried);
    return try_sonames(wanted, RTLD_NOLOAD, tried) || try_sonames(wanted, 0, tried) ||
           try_toolkits(wanted, tried) || try_wheels(wanted, tried);
}

void cuda_library_file(char *out, size_t bytes, const void *function, const char *name)
{
    Dl_info info;

    text_format(out, bytes, "%s",
                dladdr(function, &info) && info.dli_fname ? info.dli_fname : name);
}
