/* SPDX-License-Identifier: Apache-2.0
 *
 * The NCCL library is opened, not linked. Invariant: one that is handed out has every function of
 * the table, is 2.18 or newer, the first with ncclCommSplit, and is never closed, as communicators
 * may be in use until the process ends. Trick: a communicator does not say which library made it,
 * so where the caller has one, the library must be the only one that the process has, or be named.
 */
#include "gpu/nccl_library.h"

#include "base/cuda_library.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

enum { OLDEST = 21800 };

/* major * 10000 + minor * 100 + patch */
#define VERSION(number) (number) / 10000, (number) % 10000 / 100, (number) % 100

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nccl *libraries; /* under the lock; all that were ever handed out */

static bool bind(struct nccl *nccl, void *library, const char *name, struct text *tried)
{
#define X(type, function, arguments)                                                               \
    *(void **)&nccl->function = dlsym(library, #function);                                         \
    if (!nccl->function) {                                                                         \
        text_add(tried, "; '%s' lacks %s", name, #function);                                       \
        return false;                                                                              \
    }
    NCCL_FUNCTIONS(X)
#undef X
    return true;
}

static bool accept(void *taker, void *library, const char *name, struct text *tried)
{
    struct nccl *nccl = taker;

    *(void **)&nccl->ncclGetVersion = dlsym(library, "ncclGetVersion");
    if (!nccl->ncclGetVersion || nccl->ncclGetVersion(&nccl->version) != NCCL_SUCCESS) {
        text_add(tried, "; '%s' does not tell its version", name);
        return false;
    }
    cuda_library_file(nccl->path, sizeof nccl->path, *(void **)&nccl->ncclGetVersion, name);
    if (nccl->version < OLDEST) {
        text_add(tried, "; '%s' is %d.%d.%d, older than %d.%d.%d", nccl->path,
                 VERSION(nccl->version), VERSION(OLDEST));
        return false;
    }
    return bind(nccl, library, name, tried);
}

/* ---- what the process has loaded ---- */

struct loaded {
    char paths[2][512];
    int count;
};

static int see_object(struct dl_phdr_info *info, size_t bytes, void *user)
{
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *file = slash ? slash + 1 : info->dlpi_name;
    struct loaded *loaded = user;

    (void)bytes;
    if (strncmp(file, "libnccl.so", 10) != 0)
        return 0;
    if (loaded->count < 2)
        text_copy(loaded->paths[loaded->count], "%s", info->dlpi_name);
    loaded->count++;
    return 0;
}

/* Before anything is opened for the caller's communicator. */
static ffa_status check_loaded(const char *path, ffa_error *err)
{
    struct loaded loaded = { .count = 0 };

    (void)dl_iterate_phdr(see_object, &loaded);
    if (loaded.count == 0 && !dlsym(RTLD_DEFAULT, "ncclCommSplit"))
        return error_fail(err, FFA_INVALID, 0,
                          "comm is given, and the process has no NCCL loaded that it could be of");
    if (loaded.count > 1 && !path)
        return error_fail(err, FFA_INVALID, 0,
                          "comm is given, and the process has two NCCL libraries, '%s' and '%s': "
                          "nccl_path names the one that it is of",
                          loaded.paths[0], loaded.paths[1]);
    return FFA_OK;
}

/* A library linked into another one, as frameworks do, has no file of its own. */
static bool open_linked(struct nccl *nccl, struct text *tried)
{
    return accept(nccl, RTLD_DEFAULT, "the program", tried);
}

static bool is_file_loaded(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);

    if (library)
        (void)dlclose(library);
    return library != NULL;
}

/* ---- opening ---- */

static bool open_any(struct nccl *nccl, const char *path, bool is_foreign, struct text *tried)
{
    const struct cuda_library wanted = { .stem = "libnccl.so.2",
                                         .wheel_12 = "nccl",
                                         .fault = FAULT_GPU,
                                         .accept = accept,
                                         .taker = nccl };

    if (!path && is_foreign && !is_file_loaded(wanted.stem))
        return open_linked(nccl, tried);
    return cuda_library_open(&wanted, path, tried);
}

/* The one that is known by this path already, or this one. */
static struct nccl *keep(struct nccl *nccl)
{
    struct nccl *known;

    pthread_mutex_lock(&lock);
    for (known = libraries; known && known->ncclGetVersion != nccl->ncclGetVersion;)
        known = known->next;
    if (!known) {
        nccl->next = libraries;
        libraries = nccl;
    }
    pthread_mutex_unlock(&lock);
    if (known)
        mem_free(nccl);
    return known ? known : nccl;
}

ffa_status nccl_open(const struct nccl **out, const char *path, const void *foreign, ffa_error *err)
{
    struct nccl *nccl = NULL;
    struct text tried = { 0 };
    ffa_status rc = FFA_OK;

    *out = NULL;
    if (foreign)
        FFA_TRY(check_loaded(path, err));
    if (foreign && path && !is_file_loaded(path)) {
        rc = error_fail(err, FFA_INVALID, 0,
                        "nccl_path is '%s', which the process has not loaded: comm is of another "
                        "NCCL",
                        path);
        goto out;
    }
    nccl = mem_array(1, sizeof *nccl);
    if (!nccl) {
        rc = error_nomem(err, "NCCL's table of functions");
        goto out;
    }
    if (!open_any(nccl, path, foreign != NULL, &tried)) {
        rc = tried.failed ? error_nomem(err, "the search for NCCL")
                          : error_fail(err, FFA_UNSUPPORTED, 0,
                                       "no NCCL >= %d.%d.%d (option nccl_path names one): %s",
                                       VERSION(OLDEST), tried.at ? tried.at + 2 : "none found");
        goto out;
    }
    *out = keep(nccl);
    nccl = NULL;
out:
    text_finish(&tried);
    mem_free(nccl);
    return rc;
}

const char *nccl_path(const struct nccl *nccl)
{
    return nccl->path;
}
