/* SPDX-License-Identifier: Apache-2.0
 *
 * An NVRTC too old for libffa: it opens, has every function, and reports version 12.1.
 */
#define FAKE __attribute__((visibility("default")))
/* clang-format off */
#define UNUSED_FUNCTIONS(X) \
    X(nvrtcGetErrorString) X(nvrtcCreateProgram) X(nvrtcDestroyProgram) X(nvrtcCompileProgram) \
    X(nvrtcGetProgramLogSize) X(nvrtcGetProgramLog) X(nvrtcGetCUBINSize) X(nvrtcGetCUBIN) \
    X(nvrtcGetPTXSize) X(nvrtcGetPTX)
/* clang-format on */
#define X(name)                                                                                    \
    FAKE int name(void);                                                                           \
    int name(void)                                                                                 \
    {                                                                                              \
        return 1;                                                                                  \
    }
UNUSED_FUNCTIONS(X)
#undef X

FAKE int nvrtcVersion(int *major, int *minor);
int nvrtcVersion(int *major, int *minor)
{
    *major = 12;
    *minor = 1;
    return 0;
}
