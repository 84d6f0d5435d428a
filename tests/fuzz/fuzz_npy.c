/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: any bytes as a .npy file. It is refused with a message, or read, and then it has no
 * more data than the file and passes npy_expect with its own shape.
 */
#include "cli/npy.h"
#include "fuzz/fuzz.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void require(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "fuzz_npy: %s\n", what);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    ffa_error err = { FFA_OK, 0, "" };
    struct npy array;
    ffa_status rc;
    FILE *in;

    if (bytes == 0)
        return 0; /* fmemopen refuses it */
    in = fmemopen((void *)(uintptr_t)data, bytes, "rb");
    require(in != NULL, "fmemopen failed");
    rc = npy_read_stream(&array, "input", in, &err);
    (void)fclose(in);
    if (rc != FFA_OK) {
        require(err.message[0] != '\0', "refused without a reason");
        require(array.data == NULL, "refused, but holds data");
        return 0;
    }
    require(array.dims >= 0 && array.dims <= NPY_DIMS_MAX, "dimensions out of range");
    require((size_t)array.count * npy_type_bytes(array.type) < bytes, "more data than bytes");
    require(npy_expect(&array, "input", array.shape, array.dims, "", &err) == FFA_OK,
            "does not have its own shape");
    npy_finish(&array);
    return 0;
}
