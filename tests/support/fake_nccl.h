/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL on the fake GPU, in place of src/gpu/nccl*.c, for ranks that are threads: a group holds up
 * its stream until every receive has met the send of its place. Sizes that differ are a failure
 * that nccl_comm_status tells. A program that uses it defines these functions itself, so the
 * library's own are not linked.
 */
#ifndef TESTS_FAKE_NCCL_H
#define TESTS_FAKE_NCCL_H

#include "gpu/nccl.h"

/* Whether there is an NCCL to open; there is, unless this says otherwise. */
void fake_nccl_there(bool is_there);
/* A communicator as a caller has it: ranks of one `key`. For fake_nccl_caller_free. */
void *fake_nccl_caller(int key, struct gpu_device *device, int32_t rank, int32_t rank_count);
void fake_nccl_caller_free(void *caller);
/* Of any communicator, a caller's or our own, so far. */
long fake_nccl_aborted(void);
long fake_nccl_destroyed(void);

#endif
