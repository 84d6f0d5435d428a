/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

extern "C" __global__ void attention_forward(float *out)
{
    __shared__ float row[FIXTURE_COLUMNS];

    row[threadIdx.x] = out[threadIdx.x] * FFA_SPEC_head_dim;
    __syncthreads();
    out[threadIdx.x] = row[FIXTURE_COLUMNS - 1 - threadIdx.x];
}
