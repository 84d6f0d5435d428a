/* SPDX-License-Identifier: Apache-2.0
 * Compiling this takes for ever, and ever more memory: 2^depth instantiations, no two alike. */
template <int depth, class path> struct left;
template <int depth, class path> struct right;
template <int depth, class path> struct branch {
    static constexpr int count =
        branch<depth - 1, left<depth, path>>::count + branch<depth - 1, right<depth, path>>::count;
};
template <class path> struct branch<0, path> {
    static constexpr int count = 1;
};

extern "C" __global__ void attention_forward(float *out)
{
    out[0] = (float)branch<40, void>::count;
}
