/* SPDX-License-Identifier: Apache-2.0
 * More live values than 32 registers hold. */
extern "C" __global__ void __launch_bounds__(1024, 2) attention_forward(float *out)
{
    float x[96];

#pragma unroll
    for (int i = 0; i < 96; ++i)
        x[i] = out[i * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 96; ++i)
        out[i * 1024 + threadIdx.x] = x[95 - i] * x[(i * 7) % 96];
}
