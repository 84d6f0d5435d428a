/* SPDX-License-Identifier: Apache-2.0
 *
 * What a compile log and a cubin say: registers, spills, advisories, the first error, the entry.
 */
#ifndef FFA_JIT_COMPILE_REPORT_H
#define FFA_JIT_COMPILE_REPORT_H

#include "base/base.h"

/* -1: the log has no such line, which is not the same as none. */
struct report {
    int32_t registers;
    int32_t shared_bytes; /* static */
    int32_t spill_bytes;  /* stores + loads, over all functions */
    int32_t advisory_count;
};

/* Read ptxas -v output for the kernel `entry`. log may be NULL. */
struct report report_read(const char *log, const char *entry);

/* The first error and its source lines on one line, " | " between; "" when there is none. */
void report_first_error(const char *log, char *out, size_t size);

/* Whether `cubin` is a well-formed CUDA ELF file with a kernel named `entry`. Never reads past
 * `bytes`. */
bool report_has_entry(const void *cubin, size_t bytes, const char *entry);

/* Whether `cubin` may run on `arch` ("sm_90a"): false where it says that it is for another. */
bool report_may_run_on(const void *cubin, size_t bytes, const char *arch);

#endif
