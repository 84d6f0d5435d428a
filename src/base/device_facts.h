/* SPDX-License-Identifier: Apache-2.0
 *
 * What choices look at of a device. Read from the device by src/gpu, never written in the source;
 * zero on the CPU backend.
 */
#ifndef FFA_BASE_DEVICE_FACTS_H
#define FFA_BASE_DEVICE_FACTS_H

#include <stdint.h>

struct device_facts {
    char name[128];             /* as the driver gives it */
    int32_t sm_count;           /* streaming multiprocessors */
    int32_t shared_bytes_block; /* shared memory that one block may ask for */
    int64_t l2_bytes;           /* of the whole L2 cache */
};

#endif
