/* SPDX-License-Identifier: Apache-2.0
 *
 * A tensor map as launch arguments hold it, read by host (C17) and device (C++17).
 */
#ifndef FFA_TENSOR_MAP_H
#define FFA_TENSOR_MAP_H

/* A CUtensorMap: 128 opaque bytes at a multiple of 64. (NVRTC ignores the GNU attribute.) */
#ifdef __cplusplus
struct alignas(64) tensor_map {
    unsigned long long opaque[16];
};
#else
struct tensor_map {
    _Alignas(64) unsigned long long opaque[16];
};
#endif

#endif
