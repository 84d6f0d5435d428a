/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns a list of FFA_SPEC() rows into constants. Under FFA_JIT each value must arrive as
 * -DFFA_SPEC_<name>=<value>: a missing one does not compile. Without it (nvcc by hand, clangd) the
 * row's sample value stands in.
 */
#ifdef FFA_JIT
#define FFA_SPEC_VALUE(name, sample) FFA_SPEC_##name
#else
#define FFA_SPEC_VALUE(name, sample) sample
#endif
#define FFA_SPEC(name, sample, initial, lo, hi, doc)                                               \
    constexpr int name = FFA_SPEC_VALUE(name, sample);                                             \
    static_assert(lo <= name && name <= hi, #name " outside [" #lo ", " #hi "]");
