/* SPDX-License-Identifier: Apache-2.0 */
extern "C" __global__ void another_name(float *out)
{
    out[0] = 1.0f;
}
