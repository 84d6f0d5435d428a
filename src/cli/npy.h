/* SPDX-License-Identifier: Apache-2.0
 *
 * NumPy's .npy files, versions 1 and 2: little endian, C order, float16, float32, float64, uint16.
 *
 * A reader refuses what it cannot read exactly: each refusal names the file, what was found and
 * what is wanted.
 */
#ifndef FFA_CLI_NPY_H
#define FFA_CLI_NPY_H

#include <ffa/status.h>
#include <stdio.h>

enum npy_type { NPY_FLOAT16 = 1, NPY_FLOAT32, NPY_FLOAT64, NPY_UINT16 };

enum { NPY_DIMS_MAX = 4 };

struct npy {
    enum npy_type type;
    int32_t dims;
    int64_t shape[NPY_DIMS_MAX];
    int64_t count; /* elements: the product of the shape */
    void *data;    /* owned by npy_finish after a read */
};

const char *npy_type_name(enum npy_type type); /* "float16" */
size_t npy_type_bytes(enum npy_type type);

/* `name` is for messages; `in` must be seekable. Fails with FFA_INVALID, FFA_IO, FFA_NOMEM, and
 * leaves *out empty. */
ffa_status npy_read_stream(struct npy *out, const char *name, FILE *in, ffa_error *err);
ffa_status npy_read(struct npy *out, const char *path, ffa_error *err);
void npy_finish(struct npy *array);

/* FFA_INVALID unless the array has this shape. `what` names the dimensions: "[tokens][heads]". */
ffa_status npy_expect(const struct npy *array, const char *name, const int64_t *shape, int32_t dims,
                      const char *what, ffa_error *err);

/* The file is whole or not there. */
ffa_status npy_write(const char *path, const struct npy *array, ffa_error *err);

#endif
